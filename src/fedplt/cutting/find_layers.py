"""Find the layers of a torch module.

Every module with trainable tensors becomes a layer, cut along its outputs where its kind is known
(:mod:`fedplt.cutting.rules`) and trained as one piece otherwise. A norm module joins the layer that
feeds it where that is unique. Layers can be grouped, always trained or never trained by name
patterns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedplt.cutting import channels
from fedplt.cutting.drafts import ROOT, Aliases, Member, check_storage, find_members, local_buffers
from fedplt.cutting.patterns import Patterns, match_all
from fedplt.cutting.products import products
from fedplt.cutting.rules import check_lazy
from fedplt.cutting.trace import traces
from fedplt.errors import CutError
from fedplt.planning.flow import About
from fedplt.planning.layers import Layer, Layers


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
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise CutError(f"a {type(model).__name__} cannot be cut; give a torch.nn.Module.")
    seen = [] if example is None else traces(model, example)
    check_lazy(model)
    check_storage(model)
    members, aliases, left_out = find_members(model, seen, never, fused or {})
    if not members:
        raise CutError("the model has no trainable parameters: nothing to cut.")
    fed_by = channels.feeders(seen[0]) if seen else channels.feeders_by_registration(model)
    grouped = _grouped(_with_norms(members, aliases, fed_by), aliases, groups or {})
    _check_parameters(grouped)
    always_trained = _always(always, grouped, aliases)
    layers = [
        _layer(name, member, max_sublayers, name in always_trained)
        for name, member in grouped.items()
    ]
    about = [
        About(layer.name, _kind(member), _how(layer, member), layer.size)
        for layer, member in zip(layers, grouped.values(), strict=True)
    ]
    flow = channels.flow(seen[0]) if seen else ()
    for other in seen[1:]:
        flow = channels.agreed(flow, channels.flow(other))
    made = products(seen[0]) if seen else ()
    named = {tensor.name for layer in layers for tensor in layer.tensors}
    return Layers(tuple(layers), flow, made, (*about, *left_out, *local_buffers(model, named)))


def _with_norms(
    members: dict[str, Member], aliases: Aliases, fed_by: Mapping[str, str]
) -> dict[str, Member]:
    """Let norms join the layers that feed them."""
    result = dict(members)
    for norm, feeder in fed_by.items():
        name = aliases.get(feeder, feeder) or ROOT
        if norm in result and name in result and not result[name].is_stretched:
            norm_member = result.pop(norm)
            norm_member.how = [] if result[name].how else norm_member.how
            result[name].join(norm_member)
            aliases[norm] = name
    return result


def _check_parameters(members: Mapping[str, Member]) -> None:
    for name, member in members.items():
        if all(tensor.is_buffer for tensor in member.tensors):
            raise CutError(
                f"norm module {name!r} has running statistics but no trainable parameters, and no "
                "single layer feeds it. Give an example input, or group it with a layer: "
                f"groups={{'first': [{name!r}, ...]}}."
            )


def _always(patterns: Patterns, members: Mapping[str, Member], aliases: Aliases) -> set[str]:
    found = match_all("always", patterns, [*members, *aliases])
    for name in list(found):
        while name in aliases:
            name = aliases[name]  # noqa: PLW2901
        found.add(name)
    return found


def _grouped(
    members: Mapping[str, Member], aliases: Aliases, groups: Mapping[str, str | Sequence[str]]
) -> dict[str, Member]:
    """Join the members whose names match a group's patterns, at the first one's place."""
    group_of: dict[str, str] = {}
    for group, patterns in groups.items():
        for name in match_all(f"group {group!r}", patterns, members):
            if group_of.setdefault(name, group) != group:
                raise CutError(f"layer {name!r} is in groups {group_of[name]!r} and {group!r}")
    for group in groups:
        if group in members and group_of.get(group) != group:
            raise CutError(f"group {group!r} has the name of a layer that is not in it.")
    aliases.update({name: group for name, group in group_of.items() if name != group})
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
