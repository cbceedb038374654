"""Which module owns which tensors, and which tensors are not trained and why.

A parameter belongs to the first module that has it; other modules with the very same parameter are
tied to it. This is the first pass over a model; :mod:`fedplt.cutting.drafts` makes layers of it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import nn

from fedplt.cutting.operations import NORMALIZATION
from fedplt.cutting.rules import check_tensor, kind_of
from fedplt.errors import CutError
from fedplt.kernels import RUNNING_STATISTICS, has_kernel, has_running_statistics
from fedplt.planning import LayerNote, TensorSpec, dotted, split_name

ROOT = "model"
"""The name of the model itself, where it has tensors of its own."""


class Reason(Enum):
    """Why a tensor belongs to no layer."""

    FROZEN = "not trained: frozen (requires_grad is False)"
    NEVER = "not trained: never, as asked for"
    UNUSED = "not trained: the example input does not use it"
    NORMALIZATION_NOT_TRAINED = "stays as it is: nothing of its normalization layer is trained"
    LOCAL_BUFFER = "stays local: put back after each client"


@dataclass(frozen=True)
class LeftOut:
    """A tensor that belongs to no layer."""

    name: str
    kind: str
    size: int
    reason: Reason

    @property
    def note(self) -> LayerNote:
        return LayerNote(self.name, self.kind, self.reason.value, self.size, is_layer=False)


@dataclass
class ModuleTensors:
    """The tensors of one module that are in a layer."""

    name: str
    module: nn.Module
    trained: dict[str, nn.Parameter] = field(default_factory=dict)
    """The parameters that it owns, by their names in the module."""
    tied_to: list[str] = field(default_factory=list)
    """Full names of the trained parameters that it has, but another module owns."""
    statistics: list[TensorSpec] = field(default_factory=list)
    """Running statistics, which are averaged like parameters but not trained."""


@dataclass
class Ownership:
    modules: list[ModuleTensors]
    """In the order of ``model.named_modules()``."""
    left_out: list[LeftOut]
    """Parameters that are not trained."""


def find_ownership(
    model: nn.Module, never: Collection[str], used: Collection[int] | None
) -> Ownership:
    """Sort all parameters and running statistics of a model.

    ``never`` are names of modules and parameters that no client trains, ``used`` the identities of
    the parameters that the output depends on (None: not known).
    """
    owned = {id(parameter): name for name, parameter in model.named_parameters()}
    left_out = _left_out(model, never, used)
    modules = []
    for name, module in model.named_modules():
        found = ModuleTensors(name, module)
        _sort_parameters(found, owned, left_out, never)
        if name not in never and not _is_frozen(found):
            found.statistics = _running_statistics(name, module)
        _check_statistics(name, module)
        modules.append(found)
    return Ownership(modules, list(left_out.values()))


def _left_out(
    model: nn.Module, never: Collection[str], used: Collection[int] | None
) -> dict[str, LeftOut]:
    """The parameters that are not trained, by name."""
    result = {}
    for name, parameter in model.named_parameters():
        owner, _ = split_name(name)
        if not parameter.requires_grad:
            reason = Reason.FROZEN
        elif name in never or owner in never:
            reason = Reason.NEVER
        elif used is not None and id(parameter) not in used:
            reason = Reason.UNUSED
        else:
            continue
        kind = kind_of(model.get_submodule(owner))
        result[name] = LeftOut(name, kind, parameter.numel(), reason)
    return result


def _sort_parameters(
    found: ModuleTensors,
    owned: Mapping[int, str],
    left_out: Collection[str],
    never: Collection[str],
) -> None:
    """Tell the parameters that a module owns from those that it is tied to."""
    for key, parameter in found.module.named_parameters(recurse=False):
        name, owned_name = dotted(found.name, key), owned[id(parameter)]
        if owned_name in left_out:
            continue
        if owned_name == name:
            check_tensor(name, parameter)
            found.trained[key] = parameter
            continue
        if name in never or found.name in never:
            layer = split_name(owned_name)[0] or ROOT
            raise CutError(
                f"never: {name} is tied to a tensor of {layer!r}, which is trained. Name that "
                "layer, too."
            )
        found.tied_to.append(owned_name)


def _is_frozen(found: ModuleTensors) -> bool:
    """It has parameters, and none of them is trained: its statistics stay as they are, too."""
    has_parameters = next(found.module.parameters(recurse=False), None) is not None
    return has_parameters and not found.trained and not found.tied_to


def _running_statistics(name: str, module: nn.Module) -> list[TensorSpec]:
    if not isinstance(module, NORMALIZATION):
        return []
    return [
        TensorSpec(dotted(name, key), tuple(buffer.shape), is_buffer=True)
        for key, buffer in module.named_buffers(recurse=False)
        if key in RUNNING_STATISTICS
    ]


def _check_statistics(name: str, module: nn.Module) -> None:
    if not has_running_statistics(module):
        return
    if isinstance(module, torch.jit.ScriptModule):
        raise CutError(
            f"module {name!r} (TorchScript) keeps running statistics, and what happens in it "
            "cannot be seen. Use the module that it was made from."
        )
    if not isinstance(module, NORMALIZATION):
        return
    if not has_kernel(module):
        raise CutError(
            f"module {name!r} ({type(module).__name__}) keeps running statistics in a forward of "
            "its own, so those of untrained channels would change too. Use torch's own "
            "normalization layer, or track_running_stats = False."
        )


def warn_unused(left_out: Iterable[LeftOut]) -> None:
    unused = [tensor.name for tensor in left_out if tensor.reason is Reason.UNUSED]
    if unused:
        warnings.warn(
            f"not trained, because the example input does not use them: {', '.join(unused)}. If "
            "other inputs do, give an example that does.",
            stacklevel=3,  # the caller of fedplt.cut
        )


def local_buffers(model: nn.Module, in_layers: Collection[str]) -> list[LeftOut]:
    """Buffers that are saved with the model but belong to no layer."""
    saved = model.state_dict(keep_vars=True)
    return [
        LeftOut(name, "buffer", buffer.numel(), _buffer_reason(name))
        for name, buffer in model.named_buffers()
        if name in saved and name not in in_layers and not name.endswith("num_batches_tracked")
    ]


def _buffer_reason(name: str) -> Reason:
    if split_name(name)[1] in RUNNING_STATISTICS:
        return Reason.NORMALIZATION_NOT_TRAINED
    return Reason.LOCAL_BUFFER


def check_storage(model: nn.Module) -> None:
    """Two parameters in the same memory would be untied without notice."""
    places: list[tuple[int, int, str]] = []
    for name, parameter in model.named_parameters():
        if parameter.numel() and parameter.layout is torch.strided and not parameter.is_meta:
            spans = zip(parameter.shape, parameter.stride(), strict=True)
            length = 1 + sum((size - 1) * step for size, step in spans)
            start = parameter.data_ptr()
            places.append((start, start + length * parameter.element_size(), name))
    places.sort()
    for (_, end, one), (start, _, other) in itertools.pairwise(places):
        if start < end:
            raise CutError(
                f"{other} and {one} are two parameters in the same memory. Tie them by assigning "
                "the very same nn.Parameter, or give each its own copy."
            )
