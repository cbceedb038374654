"""Coupled units of a torch module: which layers must have the same units in a sub-model.

``torch.fx`` traces the model, and units are followed from operation to operation with an example
input. A list has the names of operations that keep units apart (:mod:`fedplt.cutting.operations`);
all others are refused, so that a sub-model is never a guess.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from fedplt.cutting.operations import (
    BINARY,
    ELEMENTWISE,
    NORMALIZATION,
    PER_CHANNEL_NORMALIZATION,
    POOLING,
    RESHAPE,
)
from fedplt.errors import CutError
from fedplt.kernels import RUNNING_STATISTICS
from fedplt.models import model_mode
from fedplt.planning import ChannelPad, Layers, Spaces, TensorUnits, dotted


def traced(model: nn.Module) -> fx.GraphModule:
    """The model as a graph of operations."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(names) != len(list(model.parameters())):
        raise no_submodel("it has tied weights, and a sub-model would untie them.")
    try:
        return fx.symbolic_trace(model)
    except Exception as error:  # the user's forward may raise anything for a symbolic input
        raise no_submodel(
            "its forward pass cannot be followed step by step, as is common with transformers "
            f"({str(error).splitlines()[0]})."
        ) from error


def no_submodel(reason: str) -> CutError:
    return CutError(f"a sub-model cannot be cut from this model: {reason}")


_WHOLE = 0  # the space of all units that are never cut


class _Units(NamedTuple):
    """The axis of a tensor that holds a space's units; ``each`` adjacent values per unit."""

    space: int
    axis: int
    each: int = 1


def find_spaces(model: nn.Module, layers: Layers, example: Tensor) -> Spaces:
    """Find the spaces (sets of coupled units) of a model that was cut into these layers."""
    walk = _Walk(model, layers)
    with model_mode(model, training=False), torch.no_grad(), torch.random.fork_rng(devices=[]):
        walk.run(example)
    return walk.spaces()


class _Walk(fx.Interpreter):
    def __init__(self, model: nn.Module, layers: Layers) -> None:
        super().__init__(traced(model))
        self.extra_traceback = False  # errors of this class need no more text
        self.units: dict[fx.Node, _Units | None] = {}
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.parent, self.widths, self.makers = [_WHOLE], [0], ["the model's input"]
        self.tensors: dict[str, tuple[int, int]] = {}
        self.pads: list[tuple[str, _Units, _Units]] = []
        self.trained = {placed.tensor.name: placed.tensor for placed in layers.placed}

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        if isinstance(result, Tensor):
            self.shapes[node] = tuple(result.shape)
        self.units[node] = self._follow(node, result)
        return result

    def _follow(self, node: fx.Node, result: Any) -> _Units | None:
        inputs = [arg for arg in node.all_input_nodes if self.units.get(arg) is not None]
        if node.op == "output":
            for arg in inputs:
                self._join(self._of(arg).space, _WHOLE)
            return None
        if node.op == "call_module":
            return self._module(node, str(node.target))
        if not inputs or not isinstance(result, Tensor):
            return None
        name = node.target if isinstance(node.target, str) else node.target.__name__
        return self._operation(node, name, inputs[0])

    def _operation(self, node: fx.Node, name: str, first: fx.Node) -> _Units:
        units = self._of(first)
        if name in BINARY.functions:
            return self._binary(node)
        if name == "pad":
            return self._pad(node, first)
        if name in RESHAPE.functions:
            return self._flattened(node, first)
        keeps = (
            name in ELEMENTWISE.functions
            or (name in POOLING.functions and units.axis == 1 and len(self.shapes[first]) == 4)
            or (name == "mean" and self._keeps_axis(node, units, len(self.shapes[first])))
            or (name == "getitem" and self._takes_all(node.args[1], units.axis))
        )
        if not keeps:
            raise self._refused(units, f"the operation {name!r}")
        return units

    def _of(self, node: fx.Node) -> _Units:
        units = self.units[node]
        assert units is not None
        return units

    def _refused(self, units: _Units, what: str) -> CutError:
        maker = self.makers[self._root(units.space)]
        return no_submodel(f"the outputs of module {maker!r} may be mixed by {what}.")

    # Spaces that must agree are joined (union-find; the space that is never cut wins).

    def _root(self, space: int) -> int:
        while self.parent[space] != space:
            space = self.parent[space]
        return space

    def _join(self, one: int, other: int) -> None:
        one, other = sorted((self._root(one), self._root(other)))
        self.parent[other] = one

    def _new(self, width: int, maker: str) -> int:
        self.parent.append(len(self.parent))
        self.widths.append(width)
        self.makers.append(maker)
        return len(self.parent) - 1

    def _module(self, node: fx.Node, name: str) -> _Units | None:
        module: Any = self.fetch_attr(name)
        first = node.all_input_nodes[0]
        units, shape = self.units.get(first), self.shapes[first]
        if isinstance(module, ELEMENTWISE.modules):
            return units
        what = f"module {name!r} ({type(module).__name__})"
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            return self._matrix(module, name, units, len(shape), what)
        if units is None:
            self._never_cut(module, name)
            return None
        if isinstance(module, RESHAPE.modules):
            return self._flattened(node, first)
        layer_norm = isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1
        axis = len(shape) - 1 if layer_norm else 1
        if units.axis == axis and (layer_norm or isinstance(module, PER_CHANNEL_NORMALIZATION)):
            return self._norm(module, name, units, what)
        # A pool works on the last axes; with fewer axes, the units would be one of them.
        pools = isinstance(module, POOLING.modules) and units.axis == 1
        if pools and len(shape) == 2 + int(type(module).__name__[-2]):
            return units
        raise self._refused(units, what)

    def _matrix(self, module: Any, name: str, units: _Units | None, ndim: int, what: str) -> _Units:
        axis = 1 if isinstance(module, nn.Conv2d) else ndim - 1
        if units is not None and units.axis != axis:
            raise self._refused(units, what)
        if getattr(module, "groups", 1) != 1:
            raise no_submodel(f"{what} has groups.")
        made, columns = self._new(len(module.weight), name), units.space if units else _WHOLE
        self._record(dotted(name, "weight"), made, columns)
        self._record(dotted(name, "bias"), made, _WHOLE)
        if dotted(name, "weight") not in self.trained:  # not trained, so never cut either
            self._join(made, _WHOLE)
            self._join(columns, _WHOLE)
        return _Units(made, axis)

    def _norm(self, module: nn.Module, name: str, units: _Units, what: str) -> _Units:
        if units.each != 1:
            raise self._refused(units, what)
        for key in ("weight", "bias", *RUNNING_STATISTICS):
            self._record(dotted(name, key), units.space, _WHOLE)
        is_trained = dotted(name, "weight") in self.trained
        if list(module.parameters(recurse=False)) and not is_trained:
            self._join(units.space, _WHOLE)
        return units

    def _never_cut(self, module: nn.Module, name: str) -> None:
        """A module on the model's input: normalization stays whole, others have unknown units."""
        if any(True for _ in module.parameters()) and not isinstance(module, NORMALIZATION):
            what = f"module {name!r} ({type(module).__name__})"
            raise no_submodel(f"{what} is no Linear, Conv2d or normalization layer.")
        for key, _ in [*module.named_parameters(), *module.named_buffers()]:
            self._record(dotted(name, key), _WHOLE, _WHOLE)

    def _record(self, tensor: str, rows: int, columns: int) -> None:
        if tensor in self.tensors:  # a module that is called twice
            self._join(self.tensors[tensor][0], rows)
            self._join(self.tensors[tensor][1], columns)
        self.tensors[tensor] = (rows, columns)

    def _binary(self, node: fx.Node) -> _Units:
        tensors = [arg for arg in node.args if isinstance(arg, fx.Node) and arg in self.shapes]
        cut = [arg for arg in tensors if self.units[arg] is not None]
        units = self._of(cut[0])
        for arg in tensors:
            other = self.units[arg]
            if self.shapes[arg] != self.shapes[node] or (other and other[1:] != units[1:]):
                raise self._refused(units, f"the operation {node.name!r}")
            self._join(units.space, other.space if other else _WHOLE)
        return units

    def _flattened(self, node: fx.Node, first: fx.Node) -> _Units:
        """(batch, channels, ...) as (batch, channels * rest): channel by channel."""
        units, before = self._of(first), self.shapes[first]
        after = self.shapes[node]
        if before == after:
            return units
        if units.axis != 1 or after != (before[0], math.prod(before[1:])):
            raise self._refused(units, f"the operation {node.name!r}")
        return _Units(units.space, 1, units.each * math.prod(before[2:]))

    def _pad(self, node: fx.Node, first: fx.Node) -> _Units:
        units, before, after = self._of(first), self.shapes[first], self.shapes[node]
        if before[units.axis] == after[units.axis]:
            return units
        amounts: Any = node.args[1] if len(node.args) > 1 else node.kwargs["pad"]
        place = 2 * (len(before) - 1 - units.axis)
        settings = {"mode": "constant", "value": None, **node.kwargs}
        zeros = settings["mode"] == "constant" and settings["value"] in (None, 0)
        adds_zeros = zeros and len(node.args) <= 2 and units.axis == 1
        if amounts[place] or any(amounts[:place]) or units.each != 1 or not adds_zeros:
            raise self._refused(units, f"the operation {node.name!r}")
        made = _Units(self._new(after[1], self.makers[units.space]), 1)
        self.pads.append((node.name, units, made))
        return made

    @staticmethod
    def _keeps_axis(node: fx.Node, units: _Units, ndim: int) -> bool:
        dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        keeps = bool(node.kwargs.get("keepdim", False)) or len(node.args) > 2
        if dims is None:
            return False
        axes = {d % ndim for d in ([dims] if isinstance(dims, int) else dims)}
        # Dropping an axis before the units' axis would move it.
        return units.axis not in axes and (keeps or all(d > units.axis for d in axes))

    @staticmethod
    def _takes_all(index: Any, axis: int) -> bool:
        parts = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(part, slice) for part in parts):
            return False
        return axis >= len(parts) or parts[axis] == slice(None)

    def spaces(self) -> Spaces:
        """The joined spaces, numbered in the order of the flat state."""
        numbers: dict[int, int] = {}
        for name in self.trained:
            if name not in self.tensors:
                raise no_submodel(f"{name} is not in the traced graph.")
            if self.trained[name].repeats != 1 or self.trained[name].axis != 0:
                raise no_submodel(f"{name} is not cut by rows, or in several blocks.")
            for space in map(self._root, self.tensors[name]):
                if space != _WHOLE:
                    numbers.setdefault(space, len(numbers))

        def number(space: int) -> int | None:
            return numbers.get(self._root(space))

        return Spaces(
            tuple(self.widths[space] for space in numbers),
            tuple(TensorUnits(name, *map(number, self.tensors[name])) for name in self.trained),
            tuple(
                ChannelPad(
                    name, number(one.space), number(two.space),
                    self.widths[one.space], self.widths[two.space],
                )
                for name, one, two in self.pads
            ),
        )  # fmt: skip
