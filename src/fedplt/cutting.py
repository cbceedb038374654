"""Find the layers of a torch module.

Linear and convolution modules become layers, cut along their outputs. A norm module joins the
layer that feeds it where that is unique, and is a layer of its own otherwise. Modules can be
grouped into one layer by name patterns (a residual block).
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedplt.connections import NORMS, connections
from fedplt.errors import CutError, did_you_mean
from fedplt.layers import Layer, Layers, TensorSpec, dotted
from fedplt.sliced import FORWARDS

CUTTABLE: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv2d)
"""Modules that are cut along axis 0 of their weight and bias."""

RUNNING_STATISTICS = ("running_mean", "running_var")


def cut(
    model: nn.Module,
    example: Any = None,
    *,
    groups: Mapping[str, str | Sequence[str]] | None = None,
    max_sublayers: int | None = None,
) -> Layers:
    """Cut a model into layers and equal sub-layers.

    Args:
        model: any module made of Linear, Conv2d and norm modules (others are refused by name).
        example: an input (a batch). With it, the flow of data decides which layer feeds a norm;
            without it, the module registered just before the norm does.
        groups: ``{"block1": "blocks.0.*"}`` joins all modules whose names match into one layer.
        max_sublayers: coarser slices: at most this many per layer (a divisor of its width).
            By default every output neuron or channel is a sub-layer.

    >>> [(layer.name, layer.size, layer.num_sublayers) for layer in cut(nn.Linear(3, 4))]
    [('model', 16, 4)]
    """
    fed_by, flow = connections(model, CUTTABLE, example)
    called = {module.name for module in flow}
    members: dict[str, list[TensorSpec]] = {}
    seen: dict[int, str] = {}
    for name, module in model.named_modules():
        tensors = _tensors(name, module, seen)
        if tensors and example is not None and name not in called:
            raise CutError(
                f"module {name!r} ({type(module).__name__}) was not called for the example input. "
                "If its weights are used in another way, it cannot be cut yet; if it is not used, "
                "set requires_grad = False on its parameters."
            )
        if tensors:
            members.setdefault(fed_by.get(name, name), []).extend(tensors)
    if not members:
        raise CutError("the model has no trainable parameters: nothing to cut.")
    grouped = _grouped(members, groups or {})
    layers = (_layer(name or "model", tensors, max_sublayers) for name, tensors in grouped.items())
    return Layers(tuple(layers), flow)


def _tensors(name: str, module: nn.Module, seen: dict[int, str]) -> list[TensorSpec]:
    """The sliced tensors a module owns itself (not its children's)."""
    own = dict(module.named_parameters(recurse=False))
    trainable = {key: p for key, p in own.items() if p.requires_grad}
    if not trainable:
        # A norm without parameters still has statistics to share; a frozen one stays as it is.
        return [] if own else _running_statistics(name, module)
    if not isinstance(module, (*CUTTABLE, *NORMS)):
        raise CutError(
            f"module {name!r} ({type(module).__name__}) has parameters of its own "
            f"({', '.join(own)}) and cannot be cut yet. Supported are "
            f"{', '.join(kind.__name__ for kind in CUTTABLE)} and norm modules. "
            "Set requires_grad = False on its parameters to leave them untrained."
        )
    _check_usual(name, module, own)
    if len(trainable) < len(own):
        frozen = ", ".join(key for key in own if key not in trainable)
        raise CutError(
            f"module {name!r} is frozen in part ({frozen}); freeze all of its parameters or none."
        )
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        raise CutError(f"module {name!r}: InstanceNorm with track_running_stats cannot be cut yet.")
    for key, parameter in own.items():
        if parameter.dtype != torch.float32:
            raise CutError(
                f"{name}.{key} is {parameter.dtype}; only float32 models can be cut yet."
            )
        if id(parameter) in seen:
            raise CutError(
                f"{name}.{key} is the same parameter as {seen[id(parameter)]}; "
                "tied weights cannot be cut yet."
            )
        seen[id(parameter)] = dotted(name, key)
    sliced = [TensorSpec(dotted(name, key), tuple(p.shape)) for key, p in own.items()]
    return sliced + _running_statistics(name, module)


def _check_usual(name: str, module: nn.Module, own: Collection[str]) -> None:
    """Refuse modules that only look like a kind whose training is known."""
    kind = next(kind for kind in type(module).__mro__ if kind in FORWARDS)
    if type(module).forward is not kind.forward:
        raise CutError(
            f"module {name!r} ({type(module).__name__}) computes something of its own: it is a "
            f"{kind.__name__} with another forward, which cannot be cut yet."
        )
    if set(own) - {"weight", "bias"} or "weight" not in own:
        raise CutError(
            f"module {name!r} ({type(module).__name__}) has the parameters {', '.join(own)}: "
            "parametrized and weight-normed modules cannot be cut yet."
        )
    if any(0 in parameter.shape for parameter in module.parameters(recurse=False)):
        raise CutError(f"module {name!r} has a width of 0; give it at least one output.")


def _running_statistics(name: str, module: nn.Module) -> list[TensorSpec]:
    return [
        TensorSpec(dotted(name, key), tuple(buffer.shape), is_buffer=True)
        for key, buffer in module.named_buffers(recurse=False)
        if key in RUNNING_STATISTICS
    ]


def _grouped(
    members: Mapping[str, list[TensorSpec]], groups: Mapping[str, str | Sequence[str]]
) -> dict[str, list[TensorSpec]]:
    """Join the members whose names match a group's patterns, at the first one's place."""
    group_of: dict[str, str] = {}
    for group, patterns in groups.items():
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            matching = fnmatch.filter(members, pattern)
            if not matching:
                raise CutError(
                    f"group {group!r}: no layer matches {pattern!r}. "
                    f"{did_you_mean(pattern, members)}"
                )
            for name in matching:
                if group_of.setdefault(name, group) != group:
                    raise CutError(f"layer {name!r} is in groups {group_of[name]!r} and {group!r}")
    result: dict[str, list[TensorSpec]] = {}
    for name, tensors in members.items():
        result.setdefault(group_of.get(name, name), []).extend(tensors)
    return result


def _layer(name: str, tensors: list[TensorSpec], max_sublayers: int | None) -> Layer:
    if all(tensor.is_buffer for tensor in tensors):
        raise CutError(
            f"norm module {name!r} has running statistics but no trainable parameters, and no "
            "single layer feeds it. Give an example input, or group it with a layer."
        )
    num_sublayers = math.gcd(*(tensor.width for tensor in tensors))
    if max_sublayers is not None:
        if max_sublayers < 1:
            raise CutError(f"max_sublayers is {max_sublayers}; it must be at least 1.")
        num_sublayers = max(
            n for n in range(1, min(num_sublayers, max_sublayers) + 1) if num_sublayers % n == 0
        )
    return Layer(name, tuple(tensors), num_sublayers)
