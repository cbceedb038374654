r"""Average each sub-layer over the clients that trained it (paper, section IV-B).

.. math:: W_{l,h} \leftarrow W_{l,h} + \frac{\sum_{k \in S_{l,h}} n_k U_{k,l,h}}
                                            {\sum_{k \in S_{l,h}} n_k}

which equals the paper's weighted mean of the clients' weights. A coordinate that no client trained
keeps its bits. With the normalizer ``participants`` the denominator sums over all clients that took
part: a client that did not train a coordinate counts as a vote for its old value (FedDrop). With
client sampling, :meth:`Aggregator.expect` makes the denominator sum over all clients in
:math:`S_{l,h}`, chosen or not, and each chosen client is added with weight :math:`n_k / p_k`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import ClientUpdate
from fedplt.kernels import add_at
from fedplt.planning import Assignment, Layers, Normalizer, PlacedTensor, RoundAssignments


class BlockSums:
    """For each coordinate, the summed weight of the clients that trained it."""

    def __init__(self, layers: Layers, weights: NDArray[np.float64] | None = None) -> None:
        """All zero, or ``weights``: one per sub-layer, then (sub-models only) one per value."""
        self.layers = layers
        self.total = 0.0
        number = sum(layers.num_sublayers)
        self._flat = torch.zeros(number, dtype=torch.float64)
        self._sublayers: tuple[Tensor, ...] = self._flat.split(list(layers.num_sublayers))
        self._elements: Tensor | None = None  # one per coordinate, for sub-models
        if weights is not None:
            self._flat.copy_(torch.from_numpy(weights[:number]))
            self._elements = torch.from_numpy(weights[number:]) if len(weights) > number else None

    def plus(self, other: BlockSums) -> None:
        """Add another's weights."""
        self._flat += other._flat
        if other._elements is not None:
            elements = other._elements
            self._elements = elements if self._elements is None else self._elements + elements

    def count(self, assignment: Assignment, weight: float) -> None:
        """Add ``weight`` to every block that a client trains."""
        self.total += weight
        if assignment.holds_whole_model:
            for sublayers, ranges in zip(self._sublayers, assignment.slices, strict=True):
                for part in ranges:  # a NumPy view of the same memory has less overhead
                    sublayers.numpy()[part.start : part.stop] += weight
            return
        positions = assignment.uploaded.positions
        assert positions is not None
        if self._elements is None:
            self._elements = torch.zeros(self.layers.state_size, dtype=torch.float64)
        each = torch.tensor(weight, dtype=torch.float64).expand(len(positions))
        self._elements.index_add_(0, torch.from_numpy(positions), each)  # 4 times faster than +=

    def count_clients(self, sublayers: NDArray[np.int64], total: int) -> None:
        """Add many clients: the summed weight per sub-layer, and the total of all clients."""
        self.total += total
        self._flat += torch.from_numpy(sublayers)

    @property
    def numbers(self) -> NDArray[np.float64]:
        """The weights: one per sub-layer, then (sub-models only) one per value."""
        parts = [self._flat] if self._elements is None else [self._flat, self._elements]
        return torch.cat(parts).numpy()

    def of(self, placed: PlacedTensor) -> Tensor:
        """A tensor's weights: one per row, or one per value with sub-models."""
        sublayers, spec = self._sublayers[placed.layer_index], placed.tensor
        each = sublayers.repeat_interleave(spec.width // len(sublayers)).repeat(spec.repeats)
        if self._elements is None:
            return each[:, None]
        return self._elements[placed.offset : placed.stop].view(len(each), -1) + each[:, None]


class Aggregator:
    """Collects updates one by one.

    Add them in client order: float addition is not associative, and the result must not depend
    on which worker finishes first.
    """

    def __init__(
        self, layers: Layers, normalizer: Normalizer = "contributors", min_contributors: int = 1
    ) -> None:
        """A block that fewer than ``min_contributors`` clients trained keeps its bits."""
        self.layers, self.normalizer = layers, normalizer
        self.min_contributors = min_contributors
        self.factors: list[float] = []
        """If the rule clips, after :meth:`apply`: per update the smallest factor by which it was
        scaled, 1 if it was not."""
        self._local: frozenset[str] = frozenset()
        self._total = torch.zeros(layers.state_size)
        self._added = BlockSums(layers)
        self._expected: BlockSums | None = None
        self._contributors = BlockSums(layers) if min_contributors > 1 else None

    def add(
        self, update: ClientUpdate, assignment: Assignment, weight: float | None = None
    ) -> None:
        """Add an update, weighted by its number of examples or by ``weight``."""
        self._add(update, assignment, update.num_examples if weight is None else weight)

    def _add(self, update: ClientUpdate, assignment: Assignment, weight: float) -> None:
        self._count(assignment, weight)
        add_at(self._total, assignment.uploaded, torch.from_numpy(update.values), weight)

    def _count(self, assignment: Assignment, weight: float) -> None:
        self._local |= assignment.local
        self._added.count(assignment, weight)
        if self._contributors is not None:
            self._contributors.count(assignment, 1)

    def expect(self, assignment: Assignment, weight: float) -> None:
        """Include this client in the divisor, whether its update is added or not.

        With client sampling this keeps the mean unbiased: call it for every client with weight n,
        and add a client that is chosen with probability p with weight n / p.
        """
        if self._expected is None:
            self._expected = BlockSums(self.layers)
        self._expected.count(assignment, weight)

    def expect_all(
        self, assignments: RoundAssignments, clients: Sequence[int], weights: NDArray[np.int64]
    ) -> None:
        """:meth:`expect` for each of these clients; sums of whole numbers are exact."""
        sublayers = assignments.sublayer_weights(clients, weights)
        if sublayers is None or type(self).expect is not Aggregator.expect:
            for client, weight in zip(clients, weights.tolist(), strict=True):
                self.expect(assignments[client], weight)
            return
        self._expected = self._expected or BlockSums(self.layers)
        self._expected.count_clients(sublayers, int(weights.sum()))

    def divisors(self) -> Tensor:
        """The divisor of each value of the flat state."""
        return torch.cat(
            [
                self._divisor(placed).expand(-1, placed.tensor.row_size).reshape(-1)
                for placed in self.layers.placed
            ]
        )

    def _divisor(self, placed: PlacedTensor) -> Tensor:
        weights = self._expected or self._sums(placed)
        divisor = weights.of(placed)
        if self.normalizer == "participants":
            divisor = torch.where(divisor > 0, weights.total, 0.0)
        return divisor.to(torch.float32)

    def apply(self, state: Tensor) -> None:
        """Add the weighted mean of the updates to the state, in place."""
        for place, trained, divisor in self._shared():
            old, total = (flat[place].view(len(trained), -1) for flat in (state, self._total))
            if bool(trained.all()):
                old.add_(total / divisor)
            else:  # add nothing to untrained values, not even zero: -0.0 + 0.0 changes a bit
                old.copy_(torch.where(trained, old + total / divisor, old))

    def touched(self) -> Tensor:
        """Mask of the coordinates that :meth:`apply` changes."""
        result = torch.zeros(self.layers.state_size, dtype=torch.bool)
        for place, trained, _ in self._shared():
            where = result[place].view(len(trained), -1)
            where.copy_(trained.expand_as(where))
        return result

    def _shared(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """For each shared tensor: its slice of the flat state, the trained mask and the divisor.

        The last two are (rows, 1), or (rows, row size) with sub-models.
        """
        for placed in self.layers.placed:
            if placed.tensor.name not in self._local:
                place = slice(placed.offset, placed.stop)
                yield place, self._trained(placed), self._divisor(placed)

    def _trained(self, placed: PlacedTensor) -> Tensor:
        """Mask of the rows (or values) that enough clients trained."""
        if self._contributors is None:
            return self._sums(placed).of(placed) > 0
        return self._contributors.of(placed) >= self.min_contributors

    def _sums(self, placed: PlacedTensor) -> BlockSums:
        """The weights that a tensor's updates were added with."""
        return self._added
