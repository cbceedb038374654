"""Sub-models: the units that a client holds of every space of coupled units.

A *space* is a set of hidden units (output neurons, channels) that several tensors share: the rows
of the layer that computes them, the normalization layer after it, the columns of the layers that
take them as input and, through a residual sum, the rows of every layer that adds to them. A
sub-model holds some units of each space, and its client trains all of it. The model's inputs and
outputs belong to no space: they are never cut. :func:`fedplt.cutting.coupling.find_spaces` finds
the spaces of a torch module.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import PlanError
from fedplt.planning.assignment import (
    Assignment,
    Built_co,
    ModelBuilder,
    Scaler,
    SliceAssignment,
    whole_assignment,
)
from fedplt.planning.layers import FlatIndex, Layer, Layers, Ranges, TensorSpec, merge

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

    In a sub-model, a held input channel goes to the same output channel if that is also held.
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
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Spaces:
        return cls(
            tuple(data["widths"]),
            tuple(TensorUnits(**entry) for entry in data["tensors"]),
            tuple(ChannelPad(**entry) for entry in data["pads"]),
        )


@dataclass(frozen=True, eq=False, repr=False)
class SubmodelAssignment(Assignment):
    """One client's sub-model in one round."""

    layers: Layers
    local: frozenset[str]
    spaces: Spaces = field()
    held: tuple[Units, ...]
    """The held units of each space."""
    rate: float
    """The width rate before rounding to whole units; the scaler divides by it."""
    holds_whole_model: ClassVar[bool] = False

    @cached_property
    def slices(self) -> tuple[Ranges, ...]:  # type: ignore[override] # it is frozen
        result = []
        for layer in self.layers:
            touched = np.zeros(layer.num_sublayers, dtype=bool)
            for tensor in layer.tensors:
                space = self.spaces.by_tensor[tensor.name].rows
                if space is None:
                    touched[:] = True
                else:
                    touched[self.held[space] * layer.num_sublayers // tensor.width] = True
            runs = merge((i, i + 1) for i in np.flatnonzero(touched).tolist())
            result.append(tuple(range(start, stop) for start, stop in runs))
        return tuple(result)

    @cached_property
    def on_client(self) -> SliceAssignment:
        return whole_assignment(self.spaces.submodel(self.layers, self.num_units), self.local)

    @property
    def num_units(self) -> tuple[int, ...]:
        """Number of held units of each space: the widths of the sub-model."""
        return tuple(len(units) for units in self.held)

    @property
    def received(self) -> FlatIndex:
        return FlatIndex(positions=self.spaces.positions(self.layers, self.held))

    @property
    def uploaded(self) -> FlatIndex:  # large: not cached
        positions = self.spaces.positions(self.layers, self.held)
        if self.local:
            segments = self.on_client.uploaded.segments
            positions = np.concatenate([positions[start:stop] for start, stop in segments])
        return FlatIndex(positions=positions)

    @property
    def layer_ratios(self) -> tuple[float, ...]:
        pairs = zip(self.on_client.layers.sizes, self.layers.sizes, strict=True)
        return tuple(held / size for held, size in pairs)

    def scaled_modules(self, scaler: Scaler) -> list[str]:
        matrices = {
            tensor.module: self.spaces.by_tensor[tensor.name]
            for tensor in self.layers.tensors
            if len(tensor.shape) > 1
        }
        flow = self.layers.flow
        normed = {parent for m in flow if m.name not in matrices for parent in m.parents}
        hidden = [name for name, units in matrices.items() if units.rows is not None]
        return {
            "none": [],
            "inputs": [name for name, units in matrices.items() if units.columns is not None],
            "all": hidden,
            "normed": [name for name in hidden if name in normed],
        }[scaler]

    def build(self, builder: ModelBuilder[Built_co]) -> Built_co:
        return builder.smaller(self)

    @property
    def cost_key(self) -> Hashable:
        return "submodel", self.num_units

    def to_message(self) -> dict[str, Any]:
        return {"held": [units.tolist() for units in self.held], "rate": self.rate}


def read_assignment(
    layers: Layers,
    message: Mapping[str, Any],
    local: frozenset[str],
    find_spaces: Callable[[], Spaces],
) -> Assignment:
    """The assignment that ``Assignment.to_message`` wrote; PlanError if it does not fit the layers.

    ``find_spaces`` is called for a sub-model.
    """
    if set(message) == {"slices"}:
        slices = message["slices"]
        if not isinstance(slices, list) or len(slices) != len(layers):
            raise PlanError(f"an assignment has slices of {len(layers)} layers.")
        pairs = zip(slices, layers, strict=True)
        ranges = tuple(_ranges(part, layer.name, layer.num_sublayers) for part, layer in pairs)
        return SliceAssignment(layers, ranges, local)
    if set(message) == {"held", "rate"}:
        spaces, held, rate = find_spaces(), message["held"], message["rate"]
        widths = spaces.widths
        if not isinstance(held, list) or len(held) != len(widths):
            raise PlanError(f"a sub-model has units of {len(widths)} groups of coupled layers.")
        if not isinstance(rate, (int, float)) or not 0 < rate <= 1:
            raise PlanError(f"the rate of a sub-model is {rate!r}; it is above 0 and at most 1.")
        units = tuple(_units(part, width) for part, width in zip(held, widths, strict=True))
        return SubmodelAssignment(layers, local, spaces, units, float(rate))
    raise PlanError(f"an assignment has slices, or held and rate; this one has {sorted(message)}")


def _ranges(part: Any, name: str, number: int) -> Ranges:
    try:
        ranges = tuple(range(start, stop) for start, stop in part)
    except (TypeError, ValueError):
        ranges = (range(0),)
    ends = [0, *(place for each in ranges for place in (each.start, each.stop)), number]
    if any(before > after for before, after in pairwise(ends)) or not all(ranges):
        raise PlanError(
            f"layer {name}: slices are ascending ranges within its {number} sub-layers."
        )
    return ranges


def _units(part: Any, width: int) -> Units:
    try:
        units: Units = np.asarray(part, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        units = np.empty((0, 0), dtype=np.int64)
    inside = units.ndim == 1 and len(units) and units[0] >= 0 and units[-1] < width
    if not inside or (np.diff(units) <= 0).any():
        raise PlanError(f"held units are ascending and within the {width} of their group.")
    return units
