"""How a model is cut: layers, sub-layers, and their positions in one flat array.

A *layer* is the unit of an allocation: a Linear, a convolution, or a group of them (a residual
block). It is cut into equal *sub-layers* along its output neurons or channels. These types are
plain values; :func:`fedplt.cut` finds them in a torch module.

The state of a model is one flat array: layer after layer, tensor after tensor, each tensor stored
with its sliced axis first. A sub-layer of a tensor is then one contiguous segment, and a client's
slices are a short list of ``(start, stop)`` segments.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedplt.text import brief, counted, html_text, short_names, table

Segments = Sequence[tuple[int, int]]
"""Ascending, disjoint ``(start, stop)`` pairs."""


@dataclass(frozen=True, eq=False)
class FlatIndex:
    """Ascending indices into a flat state: segments, or positions if segments would be short.

    :mod:`fedplt.kernels.flat_state` reads and writes the values.
    """

    segments: Segments = ()
    positions: NDArray[np.int64] | None = None
    """Single positions, instead of segments."""

    @property
    def size(self) -> int:
        if self.positions is not None:
            return len(self.positions)
        return sum(stop - start for start, stop in self.segments)


@dataclass(frozen=True)
class ModuleFlow:
    """One call of a module of a known kind: a Linear, a convolution, a normalization layer, ..."""

    name: str
    positions: float
    """How often its weights are applied per example (pixels of a convolution's output)."""
    parents: tuple[str, ...]
    """The modules and bare parameters that its input comes from, with no other module in between.
    If one of them is trained, the gradient of the input is needed."""
    feeder: str | None = None
    """The one module whose output channels reach its input without being mixed."""
    columns: int = 1
    """Channel c of the feeder becomes inputs ``c * columns`` to ``(c + 1) * columns - 1``."""
    norms: tuple[str, ...] = ()
    """Normalization layers between the feeder and it."""
    weight: str | None = None
    """The tensor it multiplies with, which may be another module's (tied weights)."""
    weight_size: int = 0
    used_elsewhere: bool = False
    """Its tensors are also used without calling it, so its backward pass must not change them."""


@dataclass(frozen=True)
class Product:
    """A matrix product outside modules of a known kind: attention, a custom layer."""

    flops: float
    """FLOPs of the forward pass, per example; the gradient of each operand takes as many."""
    operands: tuple[tuple[str, ...], ...]
    """The modules and bare parameters that each operand comes from."""
    sliced: str | None = None
    """The tensor that is its last operand, if its gradient is computed for trained rows only."""
    joint: float = 0.0
    """For fused kernels: all gradients together cost this many times the forward pass."""


@dataclass(frozen=True)
class LayerNote:
    """A note for the printed table: how a layer was cut and why, or why a tensor is in none."""

    name: str
    kind: str
    how: str
    size: int = 0
    is_layer: bool = True


Ranges = tuple[range, ...]
"""Sub-layer indices of one layer: disjoint, ascending, unit-step ranges."""


@dataclass(frozen=True)
class TensorSpec:
    """One parameter or buffer of a layer and how it is sliced.

    ``axis`` is the output axis. ``repeats`` is the number of equal blocks along the axis, each
    cut in the same way (a fused query-key-value projection has 3). Buffers (running statistics)
    follow their layer's slices but are no parameters: sizes and ratios do not count them.
    """

    name: str
    shape: tuple[int, ...]
    axis: int = 0
    repeats: int = 1
    is_buffer: bool = False

    @property
    def module(self) -> str:
        """The name of the module that owns the tensor; the model itself has the empty name.

        >>> tensor = TensorSpec("block1.conv.weight", (4, 3))
        >>> tensor.module, tensor.key
        ('block1.conv', 'weight')
        """
        return split_name(self.name)[0]

    @property
    def key(self) -> str:
        """The tensor's name in its module."""
        return split_name(self.name)[1]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def row_size(self) -> int:
        """Values in one row of the sliced axis."""
        return self.num_elements // self.num_rows

    @property
    def num_rows(self) -> int:
        """Length of the sliced axis (a scalar has one row)."""
        return self.shape[self.axis] if self.shape else 1

    @property
    def width(self) -> int:
        """Rows (output neurons, channels) in one block of the sliced axis."""
        return self.num_rows // self.repeats

    def rows(self, sublayers: Ranges, num_sublayers: int) -> list[tuple[int, int]]:
        """The row ranges of these sub-layers on the sliced axis, as ``(start, stop)`` pairs."""
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
    always: bool = False
    """Every client trains the whole layer, at any ratio (a head)."""

    __repr__ = brief

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


class PlacedTensor(NamedTuple):
    """A tensor and its segment of the flat state, ``offset`` to ``stop``."""

    offset: int
    layer_index: int
    tensor: TensorSpec

    @property
    def stop(self) -> int:
        return self.offset + self.tensor.num_elements


@dataclass(frozen=True)
class Layers(Sequence[Layer]):
    """All layers of a model, in the order of its flat state."""

    items: tuple[Layer, ...]
    flow: tuple[ModuleFlow, ...] = ()
    """Empty if the model was cut without an example input."""
    products: tuple[Product, ...] = ()
    about: tuple[LayerNote, ...] = ()

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

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

    @property
    def is_traced(self) -> bool:
        """The model was cut with an example input: the flow of its data is known."""
        return bool(self.flow or self.products)

    @cached_property
    def placed(self) -> tuple[PlacedTensor, ...]:
        """All tensors with their segments, in the order of the flat state."""
        result, offset = [], 0
        for index, layer in enumerate(self.items):
            for tensor in layer.tensors:
                result.append(PlacedTensor(offset, index, tensor))
                offset += tensor.num_elements
        return tuple(result)

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors of all layers, in the order of the flat state."""
        return tuple(placed.tensor for placed in self.placed)

    @cached_property
    def state_size(self) -> int:
        """Values in the flat state: trainable parameters and buffers."""
        return sum(tensor.num_elements for tensor in self.tensors)

    def tensor_segments(
        self, slices: Sequence[Ranges]
    ) -> Iterator[tuple[TensorSpec, int, int, int]]:
        """``(tensor, first row, end row, start in the flat state)`` of every slice, in order."""
        for offset, layer_index, tensor in self.placed:
            num_sublayers = self.items[layer_index].num_sublayers
            for start, stop in tensor.rows(slices[layer_index], num_sublayers):
                yield tensor, start, stop, offset + start * tensor.row_size

    def __repr__(self) -> str:
        return f"<Layers: {counted(len(self), 'layer')}, {self.size:,} parameters>"

    def _repr_html_(self) -> str:
        return html_text(self.summary())

    def summary(self) -> str:
        """A printed table: what each layer is, how it is cut, and what is left out."""
        notes = {note.name: (note.kind, note.how) for note in self.about if note.is_layer}
        rows = []
        for name, layer in zip(short_names([layer.name for layer in self]), self, strict=True):
            kind, how = notes.get(layer.name, ("", ""))
            rows.append([name, kind, f"{layer.size:,}", f"{layer.num_sublayers:,}", how])
        parts = [
            f"{counted(len(self), 'layer')}, {counted(self.size, 'parameter')} to train",
            table(["layer", "kind", "parameters", "sub-layers", "trained"], rows, left=(0, 1, 4)),
        ]
        left_out = [note for note in self.about if not note.is_layer]
        if left_out:
            names = short_names([note.name for note in left_out])
            rows = [
                [name, note.kind, f"{note.size:,}", note.how]
                for name, note in zip(names, left_out, strict=True)
            ]
            parts += [
                f"left out: {sum(note.size for note in left_out):,} values",
                table(["tensor", "kind", "size", "why"], rows, left=(0, 1, 3)),
            ]
        if not self.is_traced:
            parts.append(
                "Cut without an example input: normalization layers were matched to the module "
                "registered before them, unused parameters are not noticed, and costs are unknown."
            )
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        return {"layers": found.pop("items"), **found}

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the layers and their tensors; the same on every machine."""
        text = json.dumps(self.identity()["layers"], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def flat_index(self, names: Collection[str]) -> FlatIndex:
        """The segments of these tensors in the flat state."""
        return FlatIndex(merge((p.offset, p.stop) for p in self.placed if p.tensor.name in names))

    def identity(self) -> dict[str, Any]:
        """Everything except the notes: the input of a plan's fingerprint."""
        return {key: value for key, value in self.to_json().items() if key != "about"}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Layers:
        def items(kind: type[Any], entries: list[dict[str, Any]]) -> tuple[Any, ...]:
            return tuple(kind(**{key: _tuples(value) for key, value in e.items()}) for e in entries)

        layers = ({**e, "tensors": items(TensorSpec, e["tensors"])} for e in data["layers"])
        return cls(
            tuple(Layer(**entry) for entry in layers),
            items(ModuleFlow, data["flow"]),
            items(Product, data["products"]),
            items(LayerNote, data["about"]),
        )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def dotted(module: str, name: str) -> str:
    """The name of a module's tensor or child; the model itself has the empty name.

    >>> dotted("fc1", "weight"), dotted("", "weight")
    ('fc1.weight', 'weight')
    """
    return f"{module}.{name}" if module else name


def split_name(name: str) -> tuple[str, str]:
    """The module of a tensor or child, and its name in that module: inverts :func:`dotted`.

    >>> split_name("block1.conv.weight"), split_name("weight")
    (('block1.conv', 'weight'), ('', 'weight'))
    """
    module, _, key = name.rpartition(".")
    return module, key


def merge(segments: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join adjacent segments; the input is ascending.

    >>> merge(iter([(0, 3), (3, 5), (7, 8)]))
    [(0, 5), (7, 8)]
    """
    merged: list[tuple[int, int]] = []
    for start, stop in segments:
        if start == stop:
            continue
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return merged
