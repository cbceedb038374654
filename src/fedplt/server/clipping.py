r"""The root mean square of an update, layer by layer, and the mean of updates clipped by it.

The root mean square is the norm over the square root of the number of trained values, so that a
client with a large slice is treated like one with a small slice. In every layer an update is scaled
down to at most ``clip`` times the median over the round's clients. Running statistics
are a group of their own: they have another scale than parameters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedplt.client import ClientUpdate
from fedplt.kernels import add_at
from fedplt.planning import Assignment, Layers, Normalizer
from fedplt.server.aggregation import Aggregator
from fedplt.server.diagnostics import CHUNK

Part = tuple[int, bool]
"""The index of a layer, and whether its buffers are meant, not its parameters."""


def update_parts(assignment: Assignment) -> Iterator[tuple[Part, int, int]]:
    """Where each tensor of each part lies in an update."""
    for part in assignment.on_client.update_parts:
        yield (part.layer_index, part.tensor.is_buffer), part.start, part.stop


def root_mean_squares(values: Tensor, assignment: Assignment) -> dict[Part, float]:
    """Of every part of an update."""
    squares: dict[Part, list[float]] = defaultdict(list)
    sizes: dict[Part, int] = defaultdict(int)
    for part, start, stop in update_parts(assignment):
        squares[part].append(square_sum(values[start:stop]))
        sizes[part] += stop - start
    return {part: math.sqrt(math.fsum(found) / sizes[part]) for part, found in squares.items()}


def square_sum(values: Tensor) -> float:
    """Sum of squares; copies of fixed chunks give the same bits in every engine."""
    return math.fsum(float(part @ part) for part in values.double().split(CHUNK))


class ClippedAggregator(Aggregator):
    """The weighted mean of updates, scaled down to ``clip`` times the median root mean square."""

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
        self.factors: list[float] = []
        """After :meth:`apply`: the smallest factor by which each update was scaled, 1 if none."""
        self._waiting: list[tuple[ClientUpdate, Assignment, float]] = []

    def add(
        self, update: ClientUpdate, assignment: Assignment, weight: float | None = None
    ) -> None:
        weight = update.num_examples if weight is None else weight
        self._count(assignment, weight)
        self._waiting.append((update, assignment, weight))

    def apply(self, state: Tensor) -> None:
        found = [
            root_mean_squares(torch.from_numpy(update.values), assignment)
            for update, assignment, _ in self._waiting
        ]
        by_part: dict[Part, list[float]] = defaultdict(list)
        for parts in found:
            for part, size in parts.items():
                by_part[part].append(size)
        limits = {part: self.clip * float(np.median(sizes)) for part, sizes in by_part.items()}
        for (update, assignment, weight), parts in zip(self._waiting, found, strict=True):
            factors = {part: _factor(size, limits[part]) for part, size in parts.items()}
            self.factors.append(min(factors.values(), default=1.0))
            values = torch.from_numpy(update.values)
            if self.factors[-1] < 1:
                values = values.clone()
                for part, start, stop in update_parts(assignment):
                    values[start:stop] *= factors[part]
            add_at(self._total, assignment.uploaded, values, weight)
        self._waiting = []
        super().apply(state)


def _factor(size: float, limit: float) -> float:
    return 1.0 if size <= limit else limit / size
