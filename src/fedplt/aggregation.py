r"""Average each sub-layer over the clients that trained it (paper, section IV-B).

.. math:: W_{l,h} \leftarrow W_{l,h} + \frac{\sum_{k \in S_{l,h}} n_k U_{k,l,h}}
                                            {\sum_{k \in S_{l,h}} n_k}

which equals the paper's weighted mean of the clients' weights. A coordinate that nobody trained
keeps its bits. With client sampling, :meth:`Aggregator.expect` makes the divisor that of all
clients in :math:`S_{l,h}`, and the chosen count :math:`n_k / p_k` each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedplt.layers import Layers, TensorSpec
from fedplt.plan import Assignment
from fedplt.update import ClientUpdate


class Aggregator:
    """Collects updates one by one.

    Add them in client order: float addition is not associative, and the result must not depend
    on which worker finishes first.
    """

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self._total = torch.zeros(layers.state_size)
        self._weights = _no_weights(layers)
        self._expected: list[Tensor] | None = None

    def add(
        self, update: ClientUpdate, assignment: Assignment, weight: float | None = None
    ) -> None:
        """Count an update by its number of examples, or by another weight."""
        weight = update.num_examples if weight is None else weight
        values, start = torch.from_numpy(update.values), 0
        for begin, end in assignment.segments:
            stop = start + end - begin
            self._total[begin:end].add_(values[start:stop], alpha=weight)
            start = stop
        _count(self._weights, assignment, weight)

    def expect(self, assignment: Assignment, weight: float) -> None:
        """Divide by the weights of the clients named here, whether they are added or not.

        With client sampling that keeps the mean unbiased: whoever is chosen with probability p
        is added with weight n / p, and everybody is expected with weight n.
        """
        if self._expected is None:
            self._expected = _no_weights(self.layers)
        _count(self._expected, assignment, weight)

    def divisors(self) -> Tensor:
        """What each number of the flat state will be divided by."""
        weights = self._expected or self._weights
        return torch.cat(
            [
                _by_row(weights[index], spec).repeat_interleave(spec.row_size)
                for _, index, spec in self.layers.placed
            ]
        ).to(torch.float32)

    def apply(self, state: Tensor) -> Tensor:
        """Add the weighted mean of the updates to the state, in place.

        Returns which coordinates somebody trained.
        """
        touched = torch.zeros(len(state), dtype=torch.bool)
        divisors = self._expected or self._weights
        for offset, index, spec in self.layers.placed:
            rows = _by_row(self._weights[index], spec)
            divisor = _by_row(divisors[index], spec).to(torch.float32)[:, None]
            place = slice(offset, offset + spec.num_elements)
            old, total = (flat[place].view(len(rows), -1) for flat in (state, self._total))
            touched[place].view(len(rows), -1)[rows > 0] = True
            if bool((rows > 0).all()):
                old.add_(total / divisor)
            else:  # rows nobody trained are not even added zero: -0.0 + 0.0 changes a bit
                trained = rows > 0
                old[trained] += total[trained] / divisor[trained]
        return touched


def _no_weights(layers: Layers) -> list[Tensor]:
    return [torch.zeros(layer.num_sublayers, dtype=torch.float64) for layer in layers]


def _count(weights: list[Tensor], assignment: Assignment, weight: float) -> None:
    for layer, ranges in zip(weights, assignment.slices, strict=True):
        for part in ranges:
            layer.numpy()[part.start : part.stop] += weight  # the same memory, with less overhead


def _by_row(weights: Tensor, spec: TensorSpec) -> Tensor:
    """A number per sub-layer as one per row of a tensor's sliced axis."""
    return weights.repeat_interleave(spec.width // len(weights)).repeat(spec.repeats)
