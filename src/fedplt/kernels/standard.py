"""Which modules do nothing but one operation that has a kernel here."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

KINDS: tuple[type[nn.Module], ...] = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Embedding,
    _BatchNorm,
    _InstanceNorm,
)
LINEAR_BY_NAME = ("transformers.pytorch_utils.Conv1D",)
"""Kinds of packages that may not be installed: Linear modules with a transposed weight."""


def has_kernel(module: nn.Module) -> bool:
    """Whether calling the module is one operation with its own weight, computed by a kernel here.

    A subclass with a forward of its own, or a patched instance, may do anything before and after.
    """
    if set(module._parameters) - {"weight", "bias"} or hasattr(module, "parametrizations"):
        return False
    if "forward" in vars(module):
        return False
    if is_transposed_linear(module):
        return True
    kind = next((kind for kind in type(module).__mro__ if kind in KINDS), None)
    if kind is None or type(module).forward is not kind.forward:
        return False
    if isinstance(module, _ConvNd) and hasattr(kind, "_conv_forward"):
        inner = type(module)._conv_forward is kind._conv_forward
        if not inner or "_conv_forward" in vars(module):
            return False
    return _has_standard_options(module)


def outputs_on_axis_1(module: nn.Module) -> bool:
    """Transposed convolutions and Conv1D have weights (inputs, outputs, ...)."""
    return is_transposed_linear(module) or bool(getattr(module, "transposed", False))


def is_transposed_linear(module: nn.Module) -> bool:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}" in LINEAR_BY_NAME


def _has_standard_options(module: Any) -> bool:
    if isinstance(module, nn.Embedding):
        return not module.scale_grad_by_freq
    if getattr(module, "transposed", False):
        return bool(module.groups == 1)
    return True
