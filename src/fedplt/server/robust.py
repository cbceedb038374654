r"""Median, trimmed mean and clipped mean of each block, over the clients that trained it.

For a coordinate that :math:`m` clients trained, with their changes in ascending order
:math:`u_1 \le \dots \le u_m`: the median, or the mean of :math:`u_{g+1}, \dots, u_{m-g}` with
:math:`g = \lfloor \mathtt{trim} \cdot m \rfloor`. Every client counts once, regardless of its
examples. The median tolerates liars among fewer than half of the *contributors of a block*, the
trimmed mean among at most :math:`g`: blocks with few contributors are protected least.

A few thousand coordinates are processed at a time: a table of all clients and all parameters would
take as much memory as a whole model per client.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import ClientUpdate
from fedplt.errors import RunError
from fedplt.kernels import add_at
from fedplt.planning import Assignment, FlatIndex, Layers, Normalizer
from fedplt.server.aggregation import Aggregator
from fedplt.server.diagnostics import CHUNK

TABLE = 2_000_000
"""Size of a table of clients and coordinates, in numbers."""
Floats = NDArray[np.float32]
Combine = Callable[[Floats, NDArray[np.int64]], NDArray[np.floating]]


class OrderAggregator(Aggregator):
    """Combines the values of each coordinate, in ascending order; every client counts once."""

    def __init__(self, layers: Layers, combine: Combine, *, min_contributors: int = 1) -> None:
        """``combine``: see :meth:`fedplt.server.AggregationRule.combine`."""
        super().__init__(layers, min_contributors=min_contributors)
        self.combine = combine
        self._sent: list[_Column] = []

    def _add(self, update: ClientUpdate, assignment: Assignment, weight: float) -> None:
        self._count(assignment, 1)
        self._sent.append(_Column(assignment.uploaded, update.values))

    def apply(self, state: Tensor) -> None:
        if not self._sent:
            return
        middle = torch.from_numpy(self._middle())
        for place, trained, _ in self._shared():
            old, change = (flat[place].view(len(trained), -1) for flat in (state, middle))
            old.copy_(torch.where(trained, old + change, old))

    def _middle(self) -> Floats:
        """The combined value of every coordinate; 0 where no client trained."""
        result = np.zeros(self.layers.state_size, dtype=np.float32)
        width = max(1, TABLE // len(self._sent))
        for start in range(0, len(result), width):
            stop = min(start + width, len(result))
            table = np.full((stop - start, len(self._sent)), np.nan, dtype=np.float32)
            for column, sent in enumerate(self._sent):
                sent.write(table[:, column], start, stop)
            table.sort(axis=1)  # those who did not train a coordinate (NaN) come last
            numbers = len(self._sent) - np.isnan(table).sum(axis=1)
            found = np.where(numbers > 0, self.combine(table, numbers), 0.0)
            if not np.isfinite(found).all():
                raise RunError(
                    "server.aggregation: the rule gave values that are not finite. Rows of the "
                    "table end with NaN where clients did not train: use the first 'numbers'."
                )
            result[start:stop] = found
        return result


class _Column:
    """A client's values, by their places in the flat state."""

    def __init__(self, places: FlatIndex, values: Floats) -> None:
        self.positions, self.values = places.positions, values
        pairs = np.array(places.segments, dtype=np.int64).reshape(-1, 2)
        self.starts, self.stops = pairs[:, 0], pairs[:, 1]
        self.offsets = np.cumsum(self.stops - self.starts) - (self.stops - self.starts)

    def write(self, column: Floats, start: int, stop: int) -> None:
        """Write the values between two places of the flat state."""
        if self.positions is not None:
            first, last = np.searchsorted(self.positions, (start, stop))
            column[self.positions[first:last] - start] = self.values[first:last]
            return
        first, last = (
            np.searchsorted(self.stops, start, "right"),
            np.searchsorted(self.starts, stop),
        )
        for index in range(int(first), int(last)):
            low, high = max(start, int(self.starts[index])), min(stop, int(self.stops[index]))
            place = int(self.offsets[index]) + low - int(self.starts[index])
            column[low - start : high - start] = self.values[place : place + high - low]


Part = tuple[int, bool]
"""The parameters of a layer, or its buffers: (layer index, is buffers)."""


def update_parts(assignment: Assignment) -> Iterator[tuple[Part, int, int]]:
    """The start and stop of each tensor in an update, and the part that it belongs to."""
    for part in assignment.on_client.update_parts:
        yield (part.layer_index, part.tensor.is_buffer), part.start, part.stop


def root_mean_squares(values: Tensor, assignment: Assignment) -> dict[Part, float]:
    """The root mean square of every part of an update."""
    squares: dict[Part, list[float]] = defaultdict(list)
    sizes: dict[Part, int] = defaultdict(int)
    for part, start, stop in update_parts(assignment):
        squares[part].append(square_sum(values[start:stop]))
        sizes[part] += stop - start
    return {part: math.sqrt(math.fsum(found) / sizes[part]) for part, found in squares.items()}


def part_medians(found: Iterable[Mapping[Part, float]]) -> dict[Part, float]:
    """The median over clients of every part's root mean square."""
    by_part: dict[Part, list[float]] = defaultdict(list)
    for parts in found:
        for part, size in parts.items():
            by_part[part].append(size)
    return {part: float(np.median(sizes)) for part, sizes in by_part.items()}


def square_sum(values: Tensor) -> float:
    """Sum of squares; copies of fixed chunks give the same bits in every engine."""
    return math.fsum(float(part @ part) for part in values.double().split(CHUNK))


@dataclass
class Sent:
    """An update, stored until all updates of its round are there."""

    values: Tensor
    assignment: Assignment
    weight: float


def clip_updates(sent: Sequence[Sent], clip: float) -> list[float]:
    """Scale updates down to ``clip`` times the median root mean square; return the factors.

    The root mean square is the norm over the square root of the number of trained values, so that
    large and small slices are treated alike. In every layer an update is scaled down to at most
    ``clip`` times the median over the round's clients. Running statistics are clipped separately:
    their scale differs from that of parameters. The returned factor is the smallest one over an
    update's layers.
    """
    found = [root_mean_squares(each.values, each.assignment) for each in sent]
    limits = {part: clip * size for part, size in part_medians(found).items()}
    smallest = []
    for each, parts in zip(sent, found, strict=True):
        factors = {
            part: 1.0 if size <= limits[part] else limits[part] / size
            for part, size in parts.items()
        }
        smallest.append(min(factors.values(), default=1.0))
        if smallest[-1] < 1:
            each.values = each.values.clone()
            for part, start, stop in update_parts(each.assignment):
                each.values[start:stop] *= factors[part]
    return smallest


class ClippedAggregator(Aggregator):
    """The weighted mean of updates that are clipped (:func:`clip_updates`)."""

    def __init__(
        self,
        layers: Layers,
        normalizer: Normalizer = "contributors",
        *,
        clip: float,
        min_contributors: int = 1,
    ) -> None:
        super().__init__(layers, normalizer, min_contributors)
        self.clip = clip
        self._sent: list[Sent] = []

    def _add(self, update: ClientUpdate, assignment: Assignment, weight: float) -> None:
        self._count(assignment, weight)
        self._sent.append(Sent(torch.from_numpy(update.values), assignment, weight))

    def apply(self, state: Tensor) -> None:
        self.factors = clip_updates(self._sent, self.clip)
        for each in self._sent:
            add_at(self._total, each.assignment.uploaded, each.values, each.weight)
        self._sent = []
        super().apply(state)
