"""Find the layers of a torch module.

Every module with trainable tensors becomes a layer. It is cut along its outputs if its kind is
known (:mod:`fedplt.cutting.layer_rules`), and trained as one piece otherwise. A normalization layer
joins the layer that feeds it, if there is exactly one. Name patterns can group layers, or make them
always or never trained.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.cutting import channels
from fedplt.cutting.layer_rules import check_lazy, kind_of, slicing_of
from fedplt.cutting.module_tensors import (
    ROOT,
    ModuleTensors,
    check_storage,
    find_module_tensors,
    local_buffers,
    warn_unused,
)
from fedplt.cutting.trace import traces
from fedplt.errors import CutError, ExampleError, did_you_mean
from fedplt.models import MODELS, build_model
from fedplt.planning import Layer, LayerNote, Layers, TensorSpec, dotted

Patterns = str | Sequence[str]


def cut(
    model: nn.Module,
    example: Any = None,
    *,
    groups: Mapping[str, Patterns] | None = None,
    always: Patterns = (),
    never: Patterns = (),
    fused: Mapping[str, int] | None = None,
    max_sublayers: int | None = None,
) -> Layers:
    """Cut a model into layers and equal sub-layers; ``print(layers.summary())`` shows how.

    Name patterns are as in a shell, and a module's name stands for all modules in it: ``"head"``,
    ``"blocks.*"``, ``"*.attention.*"``.

    Args:
        model: any module. Frozen parameters (``requires_grad = False``) stay as they are.
        example: an input (a batch): a tensor, a dictionary (given by name) or a tuple (by
            position). With it, the flow of data decides which layer feeds a normalization layer,
            parameters that are not used are left out, and costs are known.
        groups: ``{"block1": "blocks.0.*"}`` joins all layers whose names match into one.
        always: layers that every client trains in full, such as a head.
        never: parameters that no client trains, such as a backbone.
        fused: Linear modules whose outputs are several equal blocks to be cut alike, such as
            ``{"*.qkv": 3}`` (the default for modules named ``qkv`` or ``c_attn``).
        max_sublayers: at most this many sub-layers per layer (a divisor of its width).
            By default every output neuron or channel is a sub-layer.

    >>> [(layer.name, layer.size, layer.num_sublayers) for layer in cut(nn.Linear(3, 4))]
    [('model', 16, 4)]
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise CutError(f"a {type(model).__name__} cannot be cut; give a torch.nn.Module.")
    seen = [] if example is None else traces(model, example)
    check_lazy(model)
    check_storage(model)
    names = [name for name, _ in [*model.named_modules(), *model.named_parameters()]]
    used = set().union(*(trace.used() for trace in seen)) if seen else None
    modules, untrained = find_module_tensors(model, _match_all("never", never, names), used)
    warn_unused(untrained)
    _match_all("fused", list(fused or {}), names)
    drafts = _find_drafts(modules, fused or {})
    if not drafts.by_name:
        raise CutError("the model has no trainable parameters: nothing to cut.")
    fed_by = channels.feeders(seen[0]) if seen else channels.feeders_by_registration(model)
    joined = _with_normalization(drafts, fed_by)
    if seen:
        called = set().union(*(trace.inputs for trace in seen))
        joined = {n: d for n, d in joined.items() if n in called or not d.is_statistics}
    grouped = _grouped(joined, drafts.aliases, groups or {})
    always_trained = _always(always, grouped, drafts.aliases)
    layers = [
        _layer(name, draft, max_sublayers, name in always_trained)
        for name, draft in grouped.items()
    ]
    notes = [
        LayerNote(layer.name, ", ".join(draft.kinds), _how(layer, draft), layer.size)
        for layer, draft in zip(layers, grouped.values(), strict=True)
    ]
    in_layers = {tensor.name for layer in layers for tensor in layer.tensors}
    return Layers(
        tuple(layers),
        channels.flow(seen) if seen else (),
        channels.products(seen[0]) if seen else (),
        (*notes, *untrained, *local_buffers(model, in_layers)),
    )


def matches(name: str, pattern: str) -> bool:
    """
    >>> matches("blocks.0.mlp", "blocks.*"), matches("blocks.0.mlp", "blocks.0"), matches("a", "b")
    (True, True, False)
    """
    return fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def _match_all(what: str, patterns: Patterns, names: Iterable[str]) -> set[str]:
    """All names that some pattern matches; an error for a pattern that matches none."""
    names = list(names)
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matching = {name for name in names if matches(name, pattern)}
        if not matching:
            raise CutError(f"{what}: no layer matches {pattern!r}. {did_you_mean(pattern, names)}")
        found |= matching
    return found


Aliases = dict[str, list[str]]
"""Module -> the layers that contain it: tied weights, normalization layers, groups."""


@dataclass
class LayerDraft:
    """Tensors that become a layer, or a part of one."""

    tensors: list[TensorSpec] = field(default_factory=list)
    num_units: int = 0
    """The number of equal pieces that all of them can be cut into."""
    kinds: list[str] = field(default_factory=list)
    """The kinds of their modules."""
    how: list[str] = field(default_factory=list)
    """How the layer is cut, for people."""

    def join(self, other: LayerDraft) -> None:
        self.tensors += other.tensors
        self.num_units = math.gcd(self.num_units, other.num_units)
        self.kinds += [kind for kind in other.kinds if kind not in self.kinds]
        self.how += [how for how in other.how if how not in self.how]

    @property
    def is_statistics(self) -> bool:
        """Whether it has running statistics and no parameters."""
        return all(tensor.is_buffer for tensor in self.tensors)


@dataclass
class Drafts:
    """All drafts of a model."""

    by_name: dict[str, LayerDraft] = field(default_factory=dict)
    aliases: Aliases = field(default_factory=dict)
    home: dict[str, str] = field(default_factory=dict)
    """Tensor -> its draft."""

    def add(self, name: str, draft: LayerDraft) -> None:
        """Add a draft, or join it to the one of this name."""
        self.by_name.setdefault(name, LayerDraft()).join(draft)
        self.home.update({tensor.name: name for tensor in draft.tensors})


def _find_drafts(modules: Iterable[ModuleTensors], fused: Mapping[str, int]) -> Drafts:
    """One draft per module with tensors; a tied module joins the draft that it is tied to."""
    drafts = Drafts()
    for module in modules:
        tied_to = list(dict.fromkeys(drafts.home[name] for name in module.tied_to))
        if module.trained or module.statistics:
            blocks = [number for pattern, number in fused.items() if matches(module.name, pattern)]
            slicing = slicing_of(module.name, module.module, module.trained, *blocks[:1])
            tensors = [
                TensorSpec(
                    dotted(module.name, key),
                    tuple(parameter.shape),
                    slicing.axes.get(key, 0),
                    slicing.repeats.get(key, 1),
                )
                for key, parameter in module.trained.items()
            ]
            if slicing.is_bare:
                # Each parameter is a layer, even if others of the module are tied.
                for tensor in tensors:
                    drafts.add(tensor.name, LayerDraft([tensor], 1, ["Parameter"], [slicing.how]))
            else:
                tensors += module.statistics
                units = slicing.num_units or math.gcd(*(tensor.width for tensor in tensors))
                how = [] if tied_to else [slicing.how]
                name = tied_to[-1] if tied_to else _layer_name(module.name)
                drafts.add(name, LayerDraft(tensors, units, [kind_of(module.module)], how))
        for name in tied_to:
            drafts.by_name[name].how.append(f"with {module.name} (tied)")
            drafts.aliases.setdefault(module.name, []).append(name)
    return drafts


def _layer_name(module: str) -> str:
    """The layer of a module; a parametrization belongs to the module that it parametrizes.

    >>> _layer_name("blocks.0"), _layer_name("fc.parametrizations.weight"), _layer_name("")
    ('blocks.0', 'fc', 'model')
    """
    if module.startswith("parametrizations."):
        return ROOT
    return module.partition(".parametrizations.")[0] or ROOT


def _with_normalization(drafts: Drafts, fed_by: Mapping[str, str]) -> dict[str, LayerDraft]:
    """Let normalization layers join the layers that feed them."""
    result = dict(drafts.by_name)
    for normalization, feeder in fed_by.items():
        name = drafts.aliases.get(feeder, [feeder])[-1] or ROOT
        if normalization not in result or name not in result:
            continue
        if all(tensor.repeats == 1 for tensor in result[name].tensors):  # no fused projection
            joining = result.pop(normalization)
            joining.how = [] if result[name].how else joining.how
            result[name].join(joining)
            drafts.aliases[normalization] = [name]
    return result


def _always(patterns: Patterns, drafts: Mapping[str, LayerDraft], aliases: Aliases) -> set[str]:
    found = _match_all("always", patterns, [*drafts, *aliases])
    waiting = list(found)
    while waiting:
        layers = aliases.get(waiting.pop(), [])
        waiting += [name for name in layers if name not in found]
        found.update(layers)
    return found


def _grouped(
    drafts: Mapping[str, LayerDraft], aliases: Aliases, groups: Mapping[str, Patterns]
) -> dict[str, LayerDraft]:
    """Join the drafts whose names match a group's patterns, at the first one's place."""
    group_of: dict[str, str] = {}
    for group, patterns in groups.items():
        for name in _match_all(f"group {group!r}", patterns, drafts):
            if group_of.setdefault(name, group) != group:
                raise CutError(f"layer {name!r} is in groups {group_of[name]!r} and {group!r}")
    for group in groups:
        if group in drafts and group_of.get(group) != group:
            raise CutError(f"group {group!r} has the name of a layer that is not in it.")
    aliases.update({name: [group] for name, group in group_of.items() if name != group})
    result: dict[str, LayerDraft] = {}
    for name, draft in drafts.items():
        result.setdefault(group_of.get(name, name), LayerDraft()).join(draft)
    return result


def _layer(name: str, draft: LayerDraft, max_sublayers: int | None, always: bool) -> Layer:
    if draft.is_statistics:
        raise CutError(
            f"normalization layer {name!r} has running statistics but no trainable parameters, and "
            "no single layer is known to feed it. Give an example input; or set affine = True or "
            "track_running_stats = False; or group it with a layer: "
            f"groups={{'first': [{name!r}, ...]}}."
        )
    num_sublayers = draft.num_units
    if max_sublayers is not None:
        if max_sublayers < 1:
            raise CutError(f"max_sublayers is {max_sublayers}; it must be at least 1.")
        num_sublayers = max(
            n for n in range(1, min(num_sublayers, max_sublayers) + 1) if num_sublayers % n == 0
        )
    return Layer(name, tuple(draft.tensors), num_sublayers, always)


def _how(layer: Layer, draft: LayerDraft) -> str:
    how = "; ".join(draft.how)
    if layer.always:
        return f"whole, by every client (always); {how}"
    if layer.num_sublayers < draft.num_units:
        how += f", {draft.num_units // layer.num_sublayers} at a time"
    if len(draft.how) > 1:
        how += ": cut alike" if layer.num_sublayers > 1 else ": as one piece together"
    return how


def example_model(
    name: str, options: Mapping[str, Any] | None = None, shape: Sequence[int] = ()
) -> tuple[nn.Module, Tensor, Layers]:
    """A model by name or import path, a batch of two examples, and the model's layers.

    ``shape``: the shape of one example, without the batch; built-in models know theirs.
    """
    options, known = options or {}, MODELS.get(name)
    model = build_model(name, options, seed=0).eval()
    if name == "fcn" and "num_inputs" in options:
        shape = shape or [int(options["num_inputs"])]
    if shape:
        example = torch.zeros(2, *shape)
    elif known is not None and known.example is not None:
        example = known.example()
    else:
        raise ExampleError(f"the shape of an input of {name!r} is not known.")
    try:
        layers = cut(model, example, groups=known.groups if known else None)
    except ExampleError as error:
        text = f"{name!r} does not take inputs of shape {list(example.shape[1:])}"
        raise ExampleError(f"{text}: {str(error).splitlines()[0]}.") from error
    return model, example, layers
