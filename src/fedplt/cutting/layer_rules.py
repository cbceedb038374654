"""How the tensors of a module are sliced, by its kind.

Other kinds are one sub-layer, which is trained as a whole or not at all, unless the user adds a
rule (:func:`fedplt.add_layer_kind`). That is always correct, but coarser; ``Layers.summary()``
shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.cutting.operations import CONVOLUTIONS, NORMALIZATION, TRANSPOSED_CONVOLUTIONS
from fedplt.errors import CutError, did_you_mean
from fedplt.kernels import has_kernel, is_transposed_linear, outputs_on_axis_1
from fedplt.planning import split_name
from fedplt.torch_internals import is_wrapper_subclass


@dataclass(frozen=True)
class Slicing:
    """How one module's tensors are cut into sub-layers."""

    how: str
    """Description for people, such as ``"by output neuron"``."""
    num_units: int | None = None
    """The smallest pieces a client can train; None: one per row."""
    axes: dict[str, int] = field(default_factory=dict)
    """The sliced axis of each tensor that is not sliced along its first axis."""
    repeats: dict[str, int] = field(default_factory=dict)
    """Number of blocks per tensor along the sliced axis; all are cut the same way."""
    is_bare: bool = False
    """Whether each tensor is a separate layer, because the module's computation is unknown."""


_CUSTOM_KINDS: dict[type[nn.Module], Callable[[Any], Slicing]] = {}


def add_layer_kind(kind: type[nn.Module], slicing: Callable[[Any], Slicing]) -> None:
    """Define how modules of a custom kind are cut; without it, each parameter is one piece.

    Call it where the kind is defined, so that every process that imports the kind knows it.

    Args:
        kind: a class of modules; subclasses are cut alike, unless they are added, too.
        slicing: takes a module of this kind and returns its :class:`fedplt.Slicing`.

    >>> import torch
    >>> class Scale(nn.Module):
    ...     def __init__(self, width):
    ...         super().__init__()
    ...         self.factor = nn.Parameter(torch.ones(width))
    >>> add_layer_kind(Scale, lambda module: Slicing("by channel"))
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise CutError(f"add_layer_kind: {kind!r} is no class of modules; give one.")
    _CUSTOM_KINDS[kind] = slicing


def _custom_slicing(name: str, module: nn.Module) -> Slicing | None:
    """The checked slicing of a kind that the user added; None for other kinds."""
    kind = next((kind for kind in type(module).__mro__ if kind in _CUSTOM_KINDS), None)
    if kind is None:
        return None
    where = f"add_layer_kind({kind.__name__}): module {name!r}"
    slicing = _CUSTOM_KINDS[kind](module)
    if not isinstance(slicing, Slicing):
        raise CutError(f"{where} got a {type(slicing).__name__}; the function gives a Slicing.")
    shapes = {key: tuple(p.shape) for key, p in module.named_parameters(recurse=False)}
    for key in (*slicing.axes, *slicing.repeats):
        if key not in shapes:
            raise CutError(f"{where} has no parameter {key!r}. {did_you_mean(key, shapes)}")
    for key, shape in shapes.items():
        axis, blocks = slicing.axes.get(key, 0), slicing.repeats.get(key, 1)
        if not 0 <= axis < len(shape):
            raise CutError(f"{where}: {key!r} has shape {shape}, which has no axis {axis}.")
        pieces = blocks * (slicing.num_units or 1)
        if pieces < 1 or shape[axis] % pieces:
            raise CutError(
                f"{where}: axis {axis} of {key!r} has length {shape[axis]}, which cannot be cut "
                f"into {blocks} blocks of {slicing.num_units or 'any'} equal units."
            )
    return slicing


FUSED_NAMES = ("qkv", "c_attn")
"""Names of Linear modules that, with three times as many outputs as inputs, are fused q, k, v."""

_RECURRENT_TENSORS = re.compile(r"(weight_(ih|hh|hr)|bias_(ih|hh))(_l\d+(_reverse)?)?")
"""Names of tensors in torch's recurrent layers (with level and direction) and cells."""


def slicing_of(
    name: str, module: nn.Module, own: Collection[str], fused: int | None = None
) -> Slicing:
    """The slicing of a module whose own tensors are ``own``; ``fused`` blocks, if given."""
    computed = _how_computed(module, own)
    if computed:
        return Slicing(f"as one piece: {computed}", 1)
    given = _custom_slicing(name, module)
    if given is not None:
        return given
    if is_transposed_linear(module):
        return _linear(name, module, fused)
    if fused is not None and not isinstance(module, nn.Linear):
        raise CutError(f"fused: {name!r} is a {kind_of(module)}; only Linear modules can be fused.")
    for kinds, rule in RULES:
        if isinstance(module, kinds):
            slicing = rule(name, module, fused)
            return replace(slicing, how=slicing.how + _saving(module, slicing))
    return Slicing("as one piece: a separate parameter", 1, is_bare=True)


def kind_of(module: nn.Module) -> str:
    """The public name of a module's kind (torch has private subclasses)."""
    if isinstance(module, nn.utils.parametrize.ParametrizationList):
        return "parametrization"
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "Linear"
    return type(module).__name__


def _how_computed(module: nn.Module, own: Collection[str]) -> str | None:
    """How the weight is computed from other tensors whose rows are not outputs; else None."""
    if hasattr(module, "parametrizations") or isinstance(
        module, nn.utils.parametrize.ParametrizationList
    ):
        return "parametrized"
    if {"weight_g", "weight_v"} <= set(own):
        return "weight-normed"
    if hasattr(module, "weight_orig") or hasattr(module, "weight_u"):
        return "its weight is computed from another (pruned or with spectral normalization)"
    return None


def _saving(module: nn.Module, slicing: Slicing) -> str:
    """A note if slices are trained but the whole gradient is computed."""
    is_sliced = isinstance(module, (*NORMALIZATION, nn.MultiheadAttention)) or has_kernel(module)
    return "" if is_sliced or slicing.num_units == 1 else "; its whole gradient is computed"


def _convolution(name: str, module: Any, fused: int | None) -> Slicing:
    if module.groups == 1:
        return Slicing("by output channel")
    each = module.out_channels // module.groups
    return Slicing(f"by group ({each} output channels each)", module.groups)


def _linear(name: str, module: Any, fused: int | None) -> Slicing:
    transposed = outputs_on_axis_1(module)
    inputs, outputs = module.weight.shape if transposed else reversed(module.weight.shape)
    axes = {"weight": 1} if transposed else {}
    if fused is None and split_name(name)[1] in FUSED_NAMES and outputs == 3 * inputs:
        fused = 3
    if fused is None or fused == 1:
        return Slicing("by output neuron", axes=axes)
    if not isinstance(fused, int) or fused < 1 or outputs % fused:
        raise CutError(f"fused: {name!r} has {outputs} outputs, not {fused!r} equal blocks.")
    how = f"by output neuron, in {fused} blocks that are cut alike"
    if fused == 3:
        how = "by output neuron of query, key and value together"
    return Slicing(how, axes=axes, repeats={"weight": fused, "bias": fused})


def _transposed(name: str, module: Any, fused: int | None) -> Slicing:
    each = module.out_channels // module.groups
    how = "by output channel"
    if module.groups > 1:
        how += f" (the same of each of {module.groups} groups)"
    return Slicing(how, each, {"weight": 1}, {"bias": module.groups})


def _attention(name: str, module: Any, fused: int | None) -> Slicing:
    return Slicing(
        "by head: query, key and value rows together",
        module.num_heads,
        {"bias_k": 2, "bias_v": 2},
        {"in_proj_weight": 3, "in_proj_bias": 3},
    )


def _recurrent(name: str, module: Any, fused: int | None) -> Slicing:
    """Cut every level and direction at the same hidden units: the columns of a projection."""
    units, axes, repeats = module.hidden_size, {}, {}
    for key, parameter in module.named_parameters(recurse=False):
        axes[key] = int(key.startswith("weight_hr"))
        repeats[key], rest = divmod(parameter.shape[axes[key]], units)
        if rest or not repeats[key] or not _RECURRENT_TENSORS.fullmatch(key):
            return Slicing(f"as one piece: {key} is not a tensor of torch's own layer", 1)
    together = " (gates together)" if max(repeats.values()) > 1 else ""
    return Slicing(f"by hidden unit{together}", units, axes, repeats)


def _embedding(name: str, module: Any, fused: int | None) -> Slicing:
    if module.max_norm is not None:
        raise CutError(
            f"module {name!r} ({type(module).__name__}) has max_norm = {module.max_norm}: looking "
            "up a row changes it, trained or not. Use max_norm = None, or freeze it "
            "(requires_grad = False)."
        )
    if module.sparse:
        raise CutError(f"module {name!r} has sparse gradients, without slices: use sparse = False.")
    return Slicing("by vocabulary row")


RULES: tuple[tuple[tuple[type[nn.Module], ...], Callable[..., Slicing]], ...] = (
    ((nn.MultiheadAttention,), _attention),
    ((nn.Linear,), _linear),
    (TRANSPOSED_CONVOLUTIONS, _transposed),
    (CONVOLUTIONS, _convolution),
    ((nn.Embedding, nn.EmbeddingBag), _embedding),
    (NORMALIZATION, lambda *_: Slicing("by channel")),
    ((nn.Bilinear,), lambda *_: Slicing("by output neuron")),
    ((nn.RNNBase, nn.RNNCellBase), _recurrent),
)


def check_lazy(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise CutError(f"{name} has no shape yet (a lazy module). Run the model once first.")


def check_tensor(name: str, tensor: Tensor) -> None:
    """Refuse parameters whose slices cannot be trained."""
    if is_wrapper_subclass(tensor):
        raise CutError(
            f"{name} is a {type(tensor).__name__}, which has no memory itself to train slices of. "
            "Use ordinary parameters, or freeze it (requires_grad = False)."
        )
    if tensor.is_meta:
        raise CutError(f"{name} has no values (device 'meta'). Move the model to a device first.")
    if not tensor.is_floating_point():
        raise CutError(f"{name} is {tensor.dtype}; only real floating-point parameters can be cut.")
    if tensor.numel() == 0:
        raise CutError(f"{name} has shape {tuple(tensor.shape)}: it is empty. Give it a width.")
    if tensor.is_sparse or tensor.layout != torch.strided:
        raise CutError(f"{name} is sparse; only dense parameters can be cut.")
