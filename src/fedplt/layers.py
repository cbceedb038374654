"""How a model is cut: layers, sub-layers, and where their numbers lie in one flat array.

A *layer* is what an allocation indexes: a Linear, a convolution, or a group of them (a residual
block). It is cut into equal *sub-layers* along its output neurons or channels. These types are
plain values; :func:`fedplt.cut` finds them in a torch module.

The state of a model is one flat array: layer after layer, tensor after tensor, each tensor laid
out with its sliced axis first. A sub-layer of a tensor is then one contiguous stretch, and a
client's slices are a short list of ``(start, stop)`` segments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Ranges = tuple[range, ...]
"""Sub-layer indices of one layer: disjoint, ascending, unit-step ranges."""


@dataclass(frozen=True)
class TensorSpec:
    """One parameter or buffer of a layer and how it is sliced.

    ``axis`` is the output axis. ``repeats`` says that the axis holds that many equal stretches
    which are each cut the same way (a fused query-key-value projection has 3).
    Buffers (running statistics) follow their layer's slices but are not trained parameters,
    so they never count into sizes and ratios.
    """

    name: str
    shape: tuple[int, ...]
    axis: int = 0
    repeats: int = 1
    is_buffer: bool = False

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def row_size(self) -> int:
        """Numbers in one row of the sliced axis."""
        return self.num_elements // self.shape[self.axis]

    @property
    def width(self) -> int:
        """Rows (output neurons, channels) in one stretch of the sliced axis."""
        return self.shape[self.axis] // self.repeats

    def rows(self, sublayers: Ranges, num_sublayers: int) -> list[tuple[int, int]]:
        """Where the given sub-layers lie on the sliced axis, as ``(start, stop)`` pairs."""
        step = self.width // num_sublayers
        return merge(
            (repeat * self.width + part.start * step, repeat * self.width + part.stop * step)
            for repeat in range(self.repeats)
            for part in sublayers
        )


@dataclass(frozen=True)
class Layer:
    """A layer: the tensors it is made of and the number of equal sub-layers it is cut into."""

    name: str
    tensors: tuple[TensorSpec, ...]
    num_sublayers: int

    def __post_init__(self) -> None:
        for tensor in self.tensors:
            assert tensor.width % self.num_sublayers == 0, f"{tensor.name} cannot be cut evenly"

    @cached_property
    def size(self) -> int:
        """Number of trainable parameters (:math:`h_l`)."""
        return sum(t.num_elements for t in self.tensors if not t.is_buffer)

    @property
    def sublayer_size(self) -> int:
        """Trainable parameters of one sub-layer."""
        return self.size // self.num_sublayers


@dataclass(frozen=True)
class ModuleFlow:
    """How data flows through one module with sliced tensors, seen with an example input."""

    name: str
    positions: int
    """How often its weights are applied per example (pixels of a convolution's output)."""
    parents: tuple[str, ...]
    """The modules right above it in the flow of data; what they train needs its input gradient."""
    feeder: str | None = None
    """The one module whose channels it takes in through operations that keep channels apart."""
    columns: int = 1
    """Channel c of the feeder becomes inputs ``c * columns`` to ``(c + 1) * columns - 1``."""
    norms: tuple[str, ...] = ()
    """Norm modules between the feeder and it."""
    whole_gradient: bool = False
    """Its weight gradient is computed whole, even where only some rows are trained."""


@dataclass(frozen=True)
class Layers(Sequence[Layer]):
    """All layers of a model, in the order of its flat state."""

    items: tuple[Layer, ...]
    flow: tuple[ModuleFlow, ...] = ()
    """Known where the model was cut with an example input."""

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.items)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(layer.size for layer in self.items)

    @cached_property
    def size(self) -> int:
        """Trainable parameters of the model."""
        return sum(self.sizes)

    @cached_property
    def num_sublayers(self) -> tuple[int, ...]:
        return tuple(layer.num_sublayers for layer in self.items)

    @cached_property
    def placed(self) -> tuple[tuple[int, int, TensorSpec], ...]:
        """``(offset in the flat state, index of its layer, tensor)`` for every tensor."""
        result, offset = [], 0
        for index, layer in enumerate(self.items):
            for tensor in layer.tensors:
                result.append((offset, index, tensor))
                offset += tensor.num_elements
        return tuple(result)

    @cached_property
    def state_size(self) -> int:
        """Numbers in the flat state: trainable parameters and buffers."""
        return sum(tensor.num_elements for _, _, tensor in self.placed)

    def tensor_segments(
        self, slices: Sequence[Ranges]
    ) -> Iterator[tuple[TensorSpec, int, int, int]]:
        """``(tensor, first row, end row, start in the flat state)`` of every slice, in order."""
        for offset, index, tensor in self.placed:
            for start, stop in tensor.rows(slices[index], self.items[index].num_sublayers):
                yield tensor, start, stop, offset + start * tensor.row_size

    def segments(self, slices: Sequence[Ranges]) -> list[tuple[int, int]]:
        """The slices as ascending, merged ``(start, stop)`` stretches of the flat state."""
        return merge(
            (begin, begin + (stop - start) * tensor.row_size)
            for tensor, start, stop, begin in self.tensor_segments(slices)
        )

    def to_json(self) -> dict[str, Any]:
        layers = [
            {
                "name": layer.name,
                "num_sublayers": layer.num_sublayers,
                "tensors": [
                    {**vars(tensor), "shape": list(tensor.shape)} for tensor in layer.tensors
                ],
            }
            for layer in self.items
        ]
        flow = [
            {**vars(module), "parents": list(module.parents), "norms": list(module.norms)}
            for module in self.flow
        ]
        return {"layers": layers, "flow": flow}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Layers:
        layers = (
            Layer(
                entry["name"],
                tuple(
                    TensorSpec(**{**tensor, "shape": tuple(tensor["shape"])})
                    for tensor in entry["tensors"]
                ),
                entry["num_sublayers"],
            )
            for entry in data["layers"]
        )
        flow = (
            ModuleFlow(
                **{**entry, "parents": tuple(entry["parents"]), "norms": tuple(entry["norms"])}
            )
            for entry in data["flow"]
        )
        return cls(tuple(layers), tuple(flow))


def dotted(module: str, name: str) -> str:
    """The name of a module's tensor or child; the model itself has the empty name.

    >>> dotted("fc1", "weight"), dotted("", "weight")
    ('fc1.weight', 'weight')
    """
    return f"{module}.{name}" if module else name


def merge(stretches: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join stretches that touch; the input is ascending.

    >>> merge(iter([(0, 3), (3, 5), (7, 8)]))
    [(0, 5), (7, 8)]
    """
    merged: list[tuple[int, int]] = []
    for start, stop in stretches:
        if start == stop:
            continue
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return merged
