"""The hidden units that the rows and columns of each tensor belong to, so that sub-models fit.

A *space* is a set of hidden units (output neurons, channels) that several tensors share: the rows
of the layer that computes them, the normalization layer after it, the columns of the layers that
take them as input and, through a residual sum, the rows of every layer that adds to them. A
sub-model holds some units of each space. The model's inputs and outputs belong to no space: they
are never cut. :func:`fedplt.cutting.coupling.find_spaces` finds the spaces of a torch module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedplt.planning.layers import Layer, Layers, TensorSpec

Units = NDArray[np.int64]
"""Indices of the held units of a space, ascending."""


@dataclass(frozen=True)
class TensorUnits:
    """The spaces of one tensor's rows and columns; None: never cut."""

    name: str
    rows: int | None
    columns: int | None


@dataclass(frozen=True)
class ChannelPad:
    """A shortcut that appends channels of zeros: its input space is the first part of its output's.

    In a sub-model, a held input channel goes to the same output channel if that is held too.
    """

    name: str
    """Name of the operation in the traced model."""
    inputs: int | None
    outputs: int | None
    num_inputs: int
    num_outputs: int


@dataclass(frozen=True)
class Spaces:
    """All spaces of a model."""

    widths: tuple[int, ...]
    tensors: tuple[TensorUnits, ...]
    """In the order of the flat state."""
    pads: tuple[ChannelPad, ...] = ()

    @cached_property
    def by_tensor(self) -> dict[str, TensorUnits]:
        return {tensor.name: tensor for tensor in self.tensors}

    def num_parameters(
        self, layers: Layers, kept: NDArray[np.float64], *, squares: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Parameters of sub-models, (models,), from the units they keep, (models, spaces).

        ``squares`` is used for tensors whose rows and columns are of one space: the mean of a
        square, which differs from ``kept ** 2`` if ``kept`` are means of random numbers.
        """
        total = np.zeros(len(kept))
        for tensor in layers.tensors:
            units = self.by_tensor[tensor.name]
            if tensor.is_buffer:
                continue
            size = np.full(len(kept), float(tensor.num_elements))
            if units.rows is not None and units.rows == units.columns:
                size *= squares[:, units.rows] / self.widths[units.rows] ** 2
            else:
                for space in (units.rows, units.columns):
                    if space is not None:
                        size *= kept[:, space] / self.widths[space]
            total += size
        return total

    def submodel(self, layers: Layers, kept: Sequence[int]) -> Layers:
        """The layers of a sub-model that keeps this many units of each space."""
        return Layers(
            tuple(
                Layer(layer.name, tuple(self._smaller(t, kept) for t in layer.tensors), 1)
                for layer in layers
            ),
            layers.flow,
        )

    def _smaller(self, tensor: TensorSpec, kept: Sequence[int]) -> TensorSpec:
        units, shape = self.by_tensor[tensor.name], list(tensor.shape)
        for axis, space in ((0, units.rows), (1, units.columns)):
            if space is not None:
                shape[axis] = shape[axis] // self.widths[space] * kept[space]
        return TensorSpec(tensor.name, tuple(shape), is_buffer=tensor.is_buffer)

    def positions(self, layers: Layers, held: Sequence[Units]) -> NDArray[np.int64]:
        """The positions of a sub-model's values in the whole model's flat state, ascending."""
        parts = []
        for placed in layers.placed:
            tensor = placed.tensor
            units = self.by_tensor[tensor.name]
            rows = np.arange(tensor.shape[0]) if units.rows is None else held[units.rows]
            numbers = np.arange(tensor.row_size)
            if units.columns is not None:  # the columns of a unit are adjacent in each row
                each = tensor.row_size // self.widths[units.columns]
                numbers = (held[units.columns][:, None] * each + np.arange(each)).reshape(-1)
            parts.append((placed.offset + rows[:, None] * tensor.row_size + numbers).reshape(-1))
        return np.concatenate(parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "widths": list(self.widths),
            "tensors": [asdict(tensor) for tensor in self.tensors],
            "pads": [asdict(pad) for pad in self.pads],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Spaces:
        return cls(
            tuple(data["widths"]),
            tuple(TensorUnits(**entry) for entry in data["tensors"]),
            tuple(ChannelPad(**entry) for entry in data["pads"]),
        )
