"""Which module owns which tensors, and which tensors are not trained and why.

A shared parameter belongs to the first module that has it; the other modules are tied to it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from fedplt.cutting.layer_rules import check_tensor, kind_of
from fedplt.cutting.operations import NORMALIZATION
from fedplt.errors import CutError
from fedplt.kernels import RUNNING_STATISTICS, has_kernel, has_running_statistics
from fedplt.planning import LayerNote, TensorSpec, dotted, split_name

ROOT = "model"
"""The layer of the model's own tensors, outside of its submodules."""

# Why a tensor belongs to no layer.
FROZEN = "not trained: frozen (requires_grad is False)"
NEVER = "not trained: never, as asked for"
UNUSED = "not trained: the example input does not use it"
NORMALIZATION_NOT_TRAINED = "stays as it is: nothing of its normalization layer is trained"
LOCAL_BUFFER = "stays local: put back after each client"


@dataclass
class ModuleTensors:
    """The tensors of one module that are in a layer."""

    name: str
    module: nn.Module
    trained: dict[str, nn.Parameter] = field(default_factory=dict)
    """The parameters that the module owns, by their names in it."""
    tied_to: list[str] = field(default_factory=list)
    """Full names of its trained parameters that another module owns."""
    statistics: list[TensorSpec] = field(default_factory=list)
    """Running statistics, which are averaged like parameters but not trained."""


def find_module_tensors(
    model: nn.Module, never: Collection[str], used: Collection[int] | None
) -> tuple[list[ModuleTensors], list[LayerNote]]:
    """The tensors of every module of ``model.named_modules()``, and the untrained parameters.

    ``never``: names of modules and parameters that no client trains. ``used``: the ``id`` of every
    parameter that the output depends on (None: not known).
    """
    owned = {id(parameter): name for name, parameter in model.named_parameters()}
    untrained = _untrained(model, never, used)
    modules = []
    for name, module in model.named_modules():
        found = ModuleTensors(name, module)
        parameters = dict(module.named_parameters(recurse=False))
        for key, parameter in parameters.items():
            own, owned_name = dotted(name, key), owned[id(parameter)]
            if owned_name in untrained:
                continue
            if owned_name == own:
                check_tensor(own, parameter)
                found.trained[key] = parameter
            elif own in never or name in never:
                raise CutError(
                    f"never: {own} is tied to a tensor of {split_name(owned_name)[0] or ROOT!r}, "
                    "which is trained. Name that layer, too."
                )
            else:
                found.tied_to.append(owned_name)
        is_frozen = parameters and not found.trained and not found.tied_to
        if name not in never and not is_frozen and isinstance(module, NORMALIZATION):
            found.statistics = [
                TensorSpec(dotted(name, key), tuple(buffer.shape), is_buffer=True)
                for key, buffer in module.named_buffers(recurse=False)
                if key in RUNNING_STATISTICS
            ]
        _check_statistics(name, module)
        modules.append(found)
    return modules, list(untrained.values())


def _untrained(
    model: nn.Module, never: Collection[str], used: Collection[int] | None
) -> dict[str, LayerNote]:
    result = {}
    for name, parameter in model.named_parameters():
        owner, _ = split_name(name)
        if not parameter.requires_grad:
            reason = FROZEN
        elif name in never or owner in never:
            reason = NEVER
        elif used is not None and id(parameter) not in used:
            reason = UNUSED
        else:
            continue
        kind = kind_of(model.get_submodule(owner))
        result[name] = LayerNote(name, kind, reason, parameter.numel(), is_layer=False)
    return result


def _check_statistics(name: str, module: nn.Module) -> None:
    if not has_running_statistics(module):
        return
    if isinstance(module, torch.jit.ScriptModule):
        raise CutError(
            f"module {name!r} (TorchScript) keeps running statistics, and its operations are "
            "hidden. Use the module that it was made from."
        )
    if isinstance(module, NORMALIZATION) and not has_kernel(module):
        raise CutError(
            f"module {name!r} ({type(module).__name__}) keeps running statistics in a custom "
            "forward, so those of untrained channels would change too. Use torch's own "
            "normalization layer, or track_running_stats = False."
        )


def warn_unused(untrained: Iterable[LayerNote]) -> None:
    unused = [note.name for note in untrained if note.how == UNUSED]
    if unused:
        warnings.warn(
            f"not trained, because the example input does not use them: {', '.join(unused)}. If "
            "other inputs do, give an example that does.",
            stacklevel=3,  # the caller of fedplt.cut
        )


def local_buffers(model: nn.Module, in_layers: Collection[str]) -> list[LayerNote]:
    """Buffers that are saved with the model but belong to no layer."""
    saved = model.state_dict(keep_vars=True)
    result = []
    for name, buffer in model.named_buffers():
        key = split_name(name)[1]
        if name in saved and name not in in_layers and not key.endswith("num_batches_tracked"):
            how = NORMALIZATION_NOT_TRAINED if key in RUNNING_STATISTICS else LOCAL_BUFFER
            result.append(LayerNote(name, "buffer", how, buffer.numel(), is_layer=False))
    return result


def check_storage(model: nn.Module) -> None:
    """Refuse parameters that overlap in memory: training would untie them."""
    ranges: list[tuple[int, int, str]] = []
    for name, parameter in model.named_parameters():
        if parameter.numel() and parameter.layout is torch.strided and not parameter.is_meta:
            spans = zip(parameter.shape, parameter.stride(), strict=True)
            length = 1 + sum((size - 1) * step for size, step in spans)
            start = parameter.data_ptr()
            ranges.append((start, start + length * parameter.element_size(), name))
    ranges.sort()
    for (_, end, one), (start, _, other) in itertools.pairwise(ranges):
        if start < end:
            raise CutError(
                f"{other} and {one} are two parameters in the same memory. Tie them by assigning "
                "the very same nn.Parameter, or give each its own copy."
            )
