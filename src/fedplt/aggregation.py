r"""Average each sub-layer over the clients that trained it (paper, section IV-B).

.. math:: W_{l,h} \leftarrow W_{l,h} + \frac{\sum_{k \in S_{l,h}} n_k U_{k,l,h}}
                                            {\sum_{k \in S_{l,h}} n_k}

which equals the paper's weighted mean of the clients' weights. A coordinate that nobody trained
keeps its bits. With the normaliser ``participants`` the sum in the denominator is over all clients
that took part: who did not train a coordinate votes for its old value (FedDrop).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedplt.layers import Layers, TensorSpec
from fedplt.plan import Assignment
from fedplt.recipe import Normaliser
from fedplt.submodel import SubmodelAssignment
from fedplt.update import ClientUpdate


class Aggregator:
    """Collects updates one by one.

    Add them in client order: float addition is not associative, and the result must not depend
    on which worker finishes first.
    """

    def __init__(self, layers: Layers, normaliser: Normaliser = "contributors") -> None:
        self.layers, self.normaliser = layers, normaliser
        self._participants = 0.0
        self._local: frozenset[str] = frozenset()
        self._elements: Tensor | None = None  # weights of single coordinates, of sub-models
        self._total = torch.zeros(layers.state_size)
        self._weights = [torch.zeros(layer.num_sublayers, dtype=torch.float64) for layer in layers]

    def add(self, update: ClientUpdate, assignment: Assignment) -> None:
        values, start = torch.from_numpy(update.values), 0
        self._participants += update.num_examples
        self._local |= assignment.local
        if isinstance(assignment, SubmodelAssignment):
            self._add_submodel(values, assignment, update.num_examples)
            return
        for begin, end in assignment.segments:
            stop = start + end - begin
            self._total[begin:end].add_(values[start:stop], alpha=update.num_examples)
            start = stop
        for weights, ranges in zip(self._weights, assignment.slices, strict=True):
            for part in ranges:
                weights[part.start : part.stop] += update.num_examples

    def _add_submodel(
        self, values: Tensor, assignment: SubmodelAssignment, num_examples: int
    ) -> None:
        where = torch.from_numpy(assignment.shared_positions)
        if self._elements is None:
            self._elements = torch.zeros(self.layers.state_size, dtype=torch.float64)
        self._total.index_add_(0, where, values, alpha=num_examples)
        self._elements[where] += num_examples

    def apply(self, state: Tensor) -> None:
        """Add the weighted mean of the updates to the state, in place."""
        for place, spec, rows in self._row_weights():
            if self._elements is not None:
                self._apply_elements(state, place, self._element_weights(place, spec, rows))
                continue
            old, total = (flat[place].view(len(rows), -1) for flat in (state, self._total))
            if self.normaliser == "participants":
                rows = torch.where(rows > 0, self._participants, rows)  # noqa: PLW2901
            if bool((rows > 0).all()):
                old.add_(total / rows.to(torch.float32)[:, None])
            else:  # rows nobody trained are not even added zero: -0.0 + 0.0 changes a bit
                trained = rows > 0
                old[trained] += total[trained] / rows[trained].to(torch.float32)[:, None]

    def touched(self) -> Tensor:
        """Which coordinates of the state somebody trained."""
        result = torch.zeros(self.layers.state_size, dtype=torch.bool)
        for place, spec, rows in self._row_weights():
            result[place] = self._element_weights(place, spec, rows) > 0
        return result

    def _row_weights(self) -> Iterator[tuple[slice, TensorSpec, Tensor]]:
        """Of every tensor that is shared: its place, and the weight of who trained each row."""
        for offset, index, spec in self.layers.placed:
            if spec.name not in self._local:
                weights = self._weights[index]
                rows = weights.repeat_interleave(spec.width // len(weights)).repeat(spec.repeats)
                yield slice(offset, offset + spec.num_elements), spec, rows

    def _element_weights(self, place: slice, spec: TensorSpec, rows: Tensor) -> Tensor:
        weights = rows.repeat_interleave(spec.row_size)
        return weights if self._elements is None else weights + self._elements[place]

    def _apply_elements(self, state: Tensor, place: slice, weights: Tensor) -> None:
        old, total = state[place], self._total[place]
        trained = weights > 0
        if self.normaliser == "participants":
            weights = torch.full_like(weights, self._participants)
        # Where nobody trained, the old bits: not even zero is added.
        old.copy_(torch.where(trained, old + total / weights.to(torch.float32), old))
