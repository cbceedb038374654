"""The model that a client holds: the whole model, or a smaller dense sub-model built from it.

A sub-model has the structure of the whole model, and tensors with only the held rows and columns,
so time, memory and FLOPs shrink with it. Its values are gathered from the whole model's flat
state.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn

from fedplt.cutting import no_submodel, traced
from fedplt.kernels import bind_state, take
from fedplt.models import model_mode
from fedplt.planning import (
    Layers,
    SliceAssignment,
    Spaces,
    SubmodelAssignment,
    kept_units,
    split_name,
)

MAX_KEPT = 16
"""Cached sub-models, by width, for later clients of the same widths."""


class PaddedChannels(nn.Module):
    """A shortcut that pads channels, in a sub-model: moves each held channel to its index."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.empty(0, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        zero = F.pad(x, (0, 0) * (x.ndim - 2) + (0, 1))  # one channel of zeros at the end
        return zero.index_select(1, self.places)


@dataclass(frozen=True, eq=False)
class HeldModel:
    """A module and its flat state."""

    module: nn.Module
    state: Tensor
    buffers: tuple[tuple[Tensor, Tensor], ...] = ()
    """Buffers of a sub-model that are not aggregated, and their initial values."""
    pads: tuple[PaddedChannels, ...] = ()


class HeldModels:
    """Provides the model that a client holds; caches a few sub-models."""

    def __init__(self, module: nn.Module, state: Tensor) -> None:
        """``state``: the module's own flat state (:func:`fedplt.bind_state`)."""
        self._resident = HeldModel(module, state)
        self._kept: OrderedDict[tuple[int, ...], HeldModel] = OrderedDict()

    def whole(self, assignment: SliceAssignment) -> HeldModel:
        return self._resident

    def smaller(self, assignment: SubmodelAssignment) -> HeldModel:
        """The sub-model of an assignment, with values from the whole model's flat state."""
        state, key = self._resident.state, assignment.num_units
        small = self._kept.pop(key, None) or self._build(assignment)
        self._kept[key] = small
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        take(state, assignment.received, out=small.state)
        for buffer, start in small.buffers:
            buffer.copy_(start)
        for module, pad in zip(small.pads, assignment.spaces.pads, strict=True):
            inputs = held_units(assignment, pad.inputs, pad.num_inputs)
            outputs = held_units(assignment, pad.outputs, pad.num_outputs)
            places = np.full(pad.num_outputs, len(inputs))  # the channel of zeros
            places[inputs] = np.arange(len(inputs))
            module.places = torch.from_numpy(places[outputs]).to(state.device)
        return small

    def _build(self, assignment: SubmodelAssignment) -> HeldModel:
        """Copy the module structure with smaller tensors; the whole tensors are not copied."""
        layers, spaces = assignment.on_client.layers, assignment.spaces
        source = self._graph if spaces.pads else self._resident.module
        tensors = [*source.parameters(), *source.buffers()]
        model = copy.deepcopy(source, {id(tensor): tensor for tensor in tensors})
        shared = {spec.name for spec in layers.tensors}
        for spec in layers.tensors:
            module, key = model.get_submodule(spec.module), spec.key
            old = getattr(module, key)
            new = torch.empty(spec.shape, dtype=old.dtype, device=old.device)
            setattr(module, key, new if spec.is_buffer else nn.Parameter(new))
            _resize(module)
        others = []
        for name, buffer in list(model.named_buffers()):
            if name not in shared:  # it may change in training
                owner, key = split_name(name)
                setattr(model.get_submodule(owner), key, buffer.clone())
                others.append((model.get_buffer(name), buffer.clone()))
        pads = _replace_pads(model, spaces) if spaces.pads else ()
        return HeldModel(model, bind_state(model, layers), tuple(others), pads)

    @cached_property
    def _graph(self) -> fx.GraphModule:
        return traced(self._resident.module)


def held_units(assignment: SubmodelAssignment, space: int | None, width: int) -> Any:
    """The held units of a space; all units if it is never cut (``space`` is None)."""
    return np.arange(width) if space is None else assignment.held[space]


def _resize(module: Any) -> None:
    """Set a module's width attributes (``in_features``, ...) to those of its tensors."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, nn.Conv2d):
        module.out_channels, module.in_channels = weight.shape[:2]
    elif isinstance(module, nn.LayerNorm):
        module.normalized_shape = tuple(weight.shape)
    elif hasattr(module, "num_features"):
        tensor = weight if weight is not None else module.running_mean
        module.num_features = len(tensor)


def _replace_pads(model: nn.Module, spaces: Spaces) -> tuple[PaddedChannels, ...]:
    assert isinstance(model, fx.GraphModule)
    made = []
    by_name = {node.name: node for node in model.graph.nodes}
    for pad in spaces.pads:
        node, name = by_name[pad.name], f"{pad.name}_places"
        module = PaddedChannels()
        model.add_module(name, module)
        with model.graph.inserting_after(node):
            new = model.graph.call_module(name, (node.args[0],))
        node.replace_all_uses_with(new)
        model.graph.erase_node(node)
        made.append(module)
    model.recompile()
    return tuple(made)


def try_submodel(model: nn.Module, layers: Layers, spaces: Spaces, example: Any) -> None:
    """Run a sub-model of half the widths once, to find problems before a run starts."""
    held = tuple(np.arange(kept_units(width, 0.5)) for width in spaces.widths)
    assignment = SubmodelAssignment(layers, frozenset(), spaces, held, 0.5)
    state = torch.zeros(layers.state_size, device=next(model.parameters()).device)
    small = HeldModels(model, state).smaller(assignment)
    try:
        with model_mode(small.module, training=False), torch.no_grad():
            small.module(example)
    except RuntimeError as error:
        raise no_submodel(
            f"one of half the width does not run ({str(error).splitlines()[0]}): the forward pass "
            "must not depend on the model's widths."
        ) from error
