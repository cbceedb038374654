r"""Measure how the global model moves from round to round (paper, section III-B).

With :math:`\Delta w^t = w^t - w^{t-1}` of the model, or of one layer:

- update magnitude :math:`MG^t = \lVert \Delta w^t \rVert^2`;
- effective perturbation over a window of :math:`\tau` rounds,
  :math:`EP^t = \lVert \sum_{t'} \Delta w^{t'} \rVert / \sum_{t'} \lVert \Delta w^{t'} \rVert`:
  1 where all rounds move the same way, near 0 where they undo each other;
- divergence of the layers: the standard deviation of their :math:`EP^t`, as one number;
- age of a sub-layer: rounds since a client last trained it.

The sum of a window's updates is the state after it minus the state before it, so updates are not
stored. The memory needed is one copy of the model's state per round of the window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedplt.planning import Layers, merge

CHUNK = 16_384
"""Sums of this size run in one thread of torch, so bits do not depend on the number of threads."""


class Diagnostics:
    """Call :meth:`observe` once per round; it returns the round's diagnostics as plain values."""

    def __init__(self, layers: Layers, window: int) -> None:
        self.layers, self.window = layers, window
        self._segments = _parameter_segments(layers)
        self._states = torch.empty(window, layers.state_size)
        """The state before each of the last rounds; round t is in row (t - 1) % window."""
        self._paths = np.zeros((window, len(layers)))
        """Norm of each layer's change in these rounds."""
        self._lengths = np.zeros(window)
        """Norm of the whole model's change in these rounds."""
        self._rounds = 0
        self._last_trained = [np.zeros(layer.num_sublayers, dtype=np.int32) for layer in layers]
        """The round in which each sub-layer was last trained; 0: never."""

    def observe(self, before: Tensor, after: Tensor, touched: Tensor) -> dict[str, Any]:
        """The diagnostics of a round that changed the state from ``before`` to ``after``.

        ``touched`` is the mask of trained coordinates from :meth:`fedplt.Aggregator.touched`.
        """
        row = self._rounds % self.window
        self._rounds += 1
        self._states[row] = before
        steps = self._squares(before, after)
        self._paths[row], self._lengths[row] = np.sqrt(steps), math.sqrt(math.fsum(steps))
        first = self._rounds % self.window if self._rounds >= self.window else 0
        moved = self._squares(self._states[first], after)
        self._note_trained(touched)
        aligned = [
            _ratio(math.sqrt(square), float(path))
            for square, path in zip(moved, self._paths.sum(axis=0), strict=True)
        ]
        known = [value for value in aligned if value is not None]
        length, path = math.sqrt(math.fsum(moved)), float(self._lengths.sum())
        values = zip(self.layers, steps, aligned, self._last_trained, strict=True)
        numbers = {
            "update_magnitude": math.fsum(steps),
            "effective_perturbation": _ratio(length, path),
            "layer_divergence": float(np.std(known)) if known else None,
            "layers": {
                layer.name: _known(
                    {"update_magnitude": step, "effective_perturbation": value, **self._ages(last)}
                )
                for layer, step, value, last in values
            },
        }
        return _known(numbers)

    def _squares(self, old: Tensor, new: Tensor) -> list[float]:
        """Squared distance of two states, per layer, without buffers."""
        return [
            math.fsum(
                float(torch.linalg.vector_norm(after - before, dtype=torch.float64)) ** 2
                for start, stop in segments
                for after, before in zip(
                    new[start:stop].split(CHUNK), old[start:stop].split(CHUNK), strict=True
                )
            )
            for segments in self._segments
        ]

    def _note_trained(self, touched: Tensor) -> None:
        """Record which sub-layers were trained: those with at least one trained parameter."""
        for placed in self.layers.placed:
            if not placed.tensor.is_buffer:
                last = self._last_trained[placed.layer_index]
                values = touched[placed.offset : placed.stop]
                parts = values.view(placed.tensor.repeats, len(last), -1)
                last[parts.any(dim=2).any(dim=0).numpy()] = self._rounds

    def _ages(self, last: Any) -> dict[str, float | int | None]:
        ages = self._rounds - last[last > 0]
        return {
            "mean_age": float(ages.mean()) if len(ages) else None,
            "max_age": int(ages.max()) if len(ages) else None,
            "never_trained": int(np.count_nonzero(last == 0)),
        }

    def tensors(self) -> dict[str, Tensor]:
        """The state for a checkpoint, so that a resumed run gives the same values."""
        return {
            "diagnostics.rounds": torch.tensor([self._rounds]),
            "diagnostics.states": self._states[: self._rounds],
            "diagnostics.paths": torch.from_numpy(self._paths.copy()),
            "diagnostics.lengths": torch.from_numpy(self._lengths.copy()),
            "diagnostics.last_trained": torch.from_numpy(np.concatenate(self._last_trained)),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        states = tensors["diagnostics.states"]
        self._rounds = int(tensors["diagnostics.rounds"])
        self._states[: len(states)] = states
        self._paths[:] = tensors["diagnostics.paths"].numpy()
        self._lengths[:] = tensors["diagnostics.lengths"].numpy()
        ends = np.cumsum([layer.num_sublayers for layer in self.layers])[:-1]
        whole = tensors["diagnostics.last_trained"].numpy()
        self._last_trained = [part.copy() for part in np.split(whole, ends)]


def _parameter_segments(layers: Layers) -> list[list[tuple[int, int]]]:
    """Per layer, the segments of the flat state with its parameters (not its buffers)."""
    found: list[list[tuple[int, int]]] = [[] for _ in layers]
    for placed in layers.placed:
        if not placed.tensor.is_buffer:
            found[placed.layer_index].append((placed.offset, placed.stop))
    return [merge(iter(segments)) for segments in found]


def _ratio(distance: float, path: float) -> float | None:
    """``distance / path``, limited to 1 because of rounding; None if nothing moved."""
    return min(1.0, distance / path) if path > 0 else None


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
