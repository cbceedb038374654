r"""Average each sub-layer over the clients that trained it (paper, section IV-B).

.. math:: W_{l,h} \leftarrow W_{l,h} + \frac{\sum_{k \in S_{l,h}} n_k U_{k,l,h}}
                                            {\sum_{k \in S_{l,h}} n_k}

which equals the paper's weighted mean of the clients' weights. A coordinate that nobody trained
keeps its bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedplt.layers import Layers
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
        self._weights = [torch.zeros(layer.num_sublayers, dtype=torch.float64) for layer in layers]

    def add(self, update: ClientUpdate, assignment: Assignment) -> None:
        values, start = torch.from_numpy(update.values), 0
        for begin, end in assignment.segments:
            stop = start + end - begin
            self._total[begin:end].add_(values[start:stop], alpha=update.num_examples)
            start = stop
        for weights, ranges in zip(self._weights, assignment.slices, strict=True):
            for part in ranges:
                weights[part.start : part.stop] += update.num_examples

    def apply(self, state: Tensor) -> None:
        """Add the weighted mean of the updates to the state, in place."""
        for offset, index, spec in self.layers.placed:
            weights = self._weights[index]
            rows = weights.repeat_interleave(spec.width // len(weights)).repeat(spec.repeats)
            place = slice(offset, offset + spec.num_elements)
            old, total = (flat[place].view(len(rows), -1) for flat in (state, self._total))
            if bool((rows > 0).all()):
                old.add_(total / rows.to(torch.float32)[:, None])
            else:  # rows nobody trained are not even added zero: -0.0 + 0.0 changes a bit
                trained = rows > 0
                old[trained] += total[trained] / rows[trained].to(torch.float32)[:, None]
