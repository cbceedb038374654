"""Find the layers of a torch module.

Every module with trainable tensors becomes a layer, cut along its outputs where its kind is known
(:mod:`fedplt.kinds`) and trained as one piece otherwise. A norm module joins the layer that feeds
it where that is unique. Layers can be grouped, always trained or never trained by name patterns.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from fedplt import connections
from fedplt.errors import CutError
from fedplt.flow import About
from fedplt.kinds import Slicing, check_lazy, check_tensor, kind_of, slicing_of
from fedplt.layers import Layer, Layers, TensorSpec, dotted
from fedplt.patterns import Patterns, first_match, match_all
from fedplt.products import products
from fedplt.sliced import forward_of
from fedplt.trace import NORMS, Trace

RUNNING_STATISTICS = ("running_mean", "running_var")


@dataclass
class Member:
    """What becomes a layer, or a part of one."""

    tensors: list[TensorSpec] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    """Of each tensor: the pieces it could be cut into."""
    kinds: list[str] = field(default_factory=list)
    how: list[str] = field(default_factory=list)

    def join(self, other: Member) -> None:
        self.tensors += other.tensors
        self.units += other.units
        self.kinds += [kind for kind in other.kinds if kind not in self.kinds]
        self.how += [how for how in other.how if how not in self.how]

    @property
    def is_stretched(self) -> bool:
        return any(tensor.repeats > 1 for tensor in self.tensors)


def cut(
    model: nn.Module,
    example: Any = None,
    *,
    groups: Mapping[str, str | Sequence[str]] | None = None,
    always: Patterns = (),
    never: Patterns = (),
    fused: Mapping[str, int] | None = None,
    max_sublayers: int | None = None,
) -> Layers:
    """Cut a model into layers and equal sub-layers; ``print(layers.summary())`` tells how.

    Name patterns are as in a shell, and a module's name stands for all that is in it: ``"head"``,
    ``"blocks.*"``, ``"*.attention.*"``.

    Args:
        model: any module. Frozen parameters (``requires_grad = False``) stay as they are.
        example: an input (a batch): a tensor, a dictionary (given by name) or a tuple (by
            position). With it, the flow of data decides which layer feeds a norm, parameters that
            are not used are left out, and costs are known.
        groups: ``{"block1": "blocks.0.*"}`` joins all layers whose names match into one.
        always: layers that every client trains whole, such as a head.
        never: parameters that nobody trains, such as a backbone.
        fused: Linear modules whose outputs are several stretches to be cut alike, such as
            ``{"*.qkv": 3}`` (the default for modules named ``qkv`` or ``c_attn``).
        max_sublayers: coarser slices: at most this many per layer (a divisor of its width).
            By default every output neuron or channel is a sub-layer.

    >>> [(layer.name, layer.size, layer.num_sublayers) for layer in cut(nn.Linear(3, 4))]
    [('model', 16, 4)]
    """
    trace = None if example is None else Trace(model, example)
    check_lazy(model)
    fed_by = connections.feeders(trace) if trace else connections.feeders_by_registration(model)
    members, left_out = _members(model, trace, never, fused or {})
    if not members:
        raise CutError("the model has no trainable parameters: nothing to cut.")
    grouped = _grouped(_with_norms(members, fed_by, model), groups or {})
    always_trained = match_all("always", always, grouped)
    layers = [
        _layer(name, member, max_sublayers, name in always_trained)
        for name, member in grouped.items()
    ]
    about = [
        About(layer.name, _kind(member), _how(layer, member), layer.size)
        for layer, member in zip(layers, grouped.values(), strict=True)
    ]
    flow = connections.flow(trace) if trace else ()
    made = products(trace) if trace else ()
    return Layers(tuple(layers), flow, made, (*about, *left_out, *_local_buffers(model)))


def _members(
    model: nn.Module, trace: Trace | None, never: Patterns, fused: Mapping[str, int]
) -> tuple[dict[str, Member], list[About]]:
    """All modules with tensors to train by name, and what is left out."""
    used = trace.used() if trace else None
    members: dict[str, Member] = {}
    left_out: list[About] = []
    home: dict[int, str] = {}  # parameter -> the member it belongs to
    names = [name for name, _ in model.named_modules()] + [n for n, _ in model.named_parameters()]
    never_trained = match_all("never", never, names)
    match_all("fused", list(fused), names)
    for name, module in model.named_modules():
        own: dict[str, nn.Parameter] = {}
        tied: str | None = None
        for key, parameter in module.named_parameters(recurse=False):
            full = dotted(name, key)
            if id(parameter) in home:
                tied = home[id(parameter)] or tied
                continue
            why = _why_not(parameter, {name, full} & never_trained, used)
            if why:
                home[id(parameter)] = ""
                left_out.append(About(full, kind_of(module), why, parameter.numel(), False))
            else:
                check_tensor(full, parameter)
                own[key] = parameter
        statistics = _running_statistics(name, module)
        if tied and not own:
            members[tied].how.append(f"with {name} (tied)")
        if not own and (
            statistics == [] or next(module.parameters(recurse=False), None) is not None
        ):
            continue  # a norm without parameters has statistics to share; a frozen one stays as is
        _check_statistics(name, module)
        slicing = slicing_of(name, module, own, first_match(name, fused))
        if tied:
            slicing = replace(slicing, how=f"with {name} (tied)")
        for home_name, member in _made(name, module, own, statistics, slicing):
            target = tied or home_name
            members.setdefault(target, Member()).join(member)
            home.update({id(own[key]): target for key in own})
    unused = [about.name for about in left_out if about.how == _NOT_USED]
    if unused:
        warnings.warn(
            f"not trained, because the example input does not use them: {', '.join(unused)}",
            stacklevel=3,
        )
    return members, left_out


_NOT_USED = "not trained: the example input does not use it"


def _why_not(parameter: nn.Parameter, never: set[str], used: set[int] | None) -> str | None:
    if not parameter.requires_grad:
        return "not trained: frozen (requires_grad is False)"
    if never:
        return "not trained: never, as asked for"
    return _NOT_USED if used is not None and id(parameter) not in used else None


def _made(
    name: str,
    module: nn.Module,
    own: Mapping[str, nn.Parameter],
    statistics: list[TensorSpec],
    slicing: Slicing,
) -> list[tuple[str, Member]]:
    """One member, or one for each bare parameter of a module of an unknown kind."""
    kind = kind_of(module)
    specs = {
        key: TensorSpec(
            dotted(name, key),
            tuple(parameter.shape),
            slicing.axes.get(key, 0),
            slicing.repeats.get(key, 1),
        )
        for key, parameter in own.items()
    }
    if slicing.is_bare:
        return [
            (spec.name, Member([spec], [1], ["Parameter"], [slicing.how]))
            for spec in specs.values()
        ]
    tensors = [*specs.values(), *statistics]
    units = [slicing.num_units or tensor.width for tensor in tensors]
    outer = name.partition(".parametrizations.")[0]  # a parametrized module's own tensors
    outer = "" if name.startswith("parametrizations.") else outer
    return [(outer or "model", Member(tensors, units, [kind], [slicing.how]))]


def _with_norms(
    members: dict[str, Member], fed_by: Mapping[str, str], model: nn.Module
) -> dict[str, Member]:
    """Let norms join the layers that feed them."""
    result = dict(members)
    for norm, feeder in fed_by.items():
        name = feeder or "model"
        if norm in result and name in result and not result[name].is_stretched:
            norm_member = result.pop(norm)
            norm_member.how = [] if result[name].how else norm_member.how
            result[name].join(norm_member)
    for name, member in result.items():
        if all(tensor.is_buffer for tensor in member.tensors):
            raise CutError(
                f"norm module {name!r} has running statistics but no trainable parameters, and no "
                "single layer feeds it. Give an example input, or group it with a layer."
            )
    return result


def _check_statistics(name: str, module: nn.Module) -> None:
    if getattr(module, "running_mean", None) is None or not isinstance(module, NORMS):
        return
    if forward_of(module) is None:
        raise CutError(
            f"module {name!r} ({type(module).__name__}) keeps running statistics in a forward of "
            "its own, so those of untrained channels would move too. Use the usual norm of torch, "
            "or track_running_stats = False."
        )


def _running_statistics(name: str, module: nn.Module) -> list[TensorSpec]:
    if not isinstance(module, NORMS):
        return []
    return [
        TensorSpec(dotted(name, key), tuple(buffer.shape), is_buffer=True)
        for key, buffer in module.named_buffers(recurse=False)
        if key in RUNNING_STATISTICS
    ]


def _local_buffers(model: nn.Module) -> list[About]:
    """Buffers that are saved with the model but belong to no layer."""
    saved = model.state_dict(keep_vars=True)
    return [
        About(name, "buffer", "stays local: put back after each client", buffer.numel(), False)
        for name, buffer in model.named_buffers()
        if name in saved
        and name.rpartition(".")[2] not in (*RUNNING_STATISTICS, "num_batches_tracked")
    ]


def _grouped(
    members: Mapping[str, Member], groups: Mapping[str, str | Sequence[str]]
) -> dict[str, Member]:
    """Join the members whose names match a group's patterns, at the first one's place."""
    group_of: dict[str, str] = {}
    for group, patterns in groups.items():
        for name in match_all(f"group {group!r}", patterns, members):
            if group_of.setdefault(name, group) != group:
                raise CutError(f"layer {name!r} is in groups {group_of[name]!r} and {group!r}")
    result: dict[str, Member] = {}
    for name, member in members.items():
        result.setdefault(group_of.get(name, name), Member()).join(member)
    return result


def _layer(name: str, member: Member, max_sublayers: int | None, always: bool) -> Layer:
    num_sublayers = math.gcd(*member.units)
    if max_sublayers is not None:
        if max_sublayers < 1:
            raise CutError(f"max_sublayers is {max_sublayers}; it must be at least 1.")
        num_sublayers = max(
            n for n in range(1, min(num_sublayers, max_sublayers) + 1) if num_sublayers % n == 0
        )
    return Layer(name, tuple(member.tensors), num_sublayers, always)


def _kind(member: Member) -> str:
    return ", ".join(member.kinds)


def _how(layer: Layer, member: Member) -> str:
    how = "; ".join(member.how)
    units = math.gcd(*member.units)
    if layer.always:
        return f"whole, by every client (always); {how}"
    if layer.num_sublayers < units:
        how += f", {units // layer.num_sublayers} at a time"
    if len(member.how) > 1:
        how += ": cut alike" if layer.num_sublayers > 1 else ": as one piece together"
    return how
