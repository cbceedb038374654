"""Forward passes whose backward computes weight gradients for the trained rows only.

Each layer runs one full-size forward kernel. The trained rows are leaf parameters that are views of
the module's own tensors, so an optimizer step on them changes the model itself.

Modules of other kinds are trained too: autograd computes their whole gradient, and
:meth:`fedplt.kernels.trained_rows.Slices.scatter_gradient` gives the leaves the part of their rows.
To make another kind cheaper, write its forward and add a line to ``FORWARDS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedplt.kernels.convolution import convolution, transposed_convolution
from fedplt.kernels.embedding import embedding
from fedplt.kernels.linear import linear
from fedplt.kernels.norm import batch_norm, instance_norm

Forward = Callable[..., Tensor]

FORWARDS: dict[type[nn.Module], Forward] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.ConvTranspose1d: transposed_convolution,
    nn.ConvTranspose2d: transposed_convolution,
    nn.ConvTranspose3d: transposed_convolution,
    nn.Embedding: embedding,
    _BatchNorm: batch_norm,
    _InstanceNorm: instance_norm,
}
FORWARDS_BY_NAME: dict[str, Forward] = {"transformers.pytorch_utils.Conv1D": linear}
"""Kinds of packages that may not be installed; a Conv1D is a Linear with a transposed weight."""


def forward_of(module: nn.Module) -> Forward | None:
    """The forward pass for a module's kind; None where there is none that computes the same.

    Its argument is named ``input`` as in torch's modules: a model may pass it by name.
    """
    if "forward" in vars(module) or set(module._parameters) - {"weight", "bias"}:
        return None
    if hasattr(module, "parametrizations"):
        return None
    if full_name(type(module)) in FORWARDS_BY_NAME:
        return FORWARDS_BY_NAME[full_name(type(module))]
    kind = next((kind for kind in type(module).__mro__ if kind in FORWARDS), None)
    if (
        kind is None
        or type(module).forward is not kind.forward
        or not _has_standard_options(module)
    ):
        return None
    return FORWARDS[kind]


def outputs_on_axis_1(module: nn.Module) -> bool:
    """Transposed convolutions and Conv1D have weights (inputs, outputs, ...)."""
    if full_name(type(module)) in FORWARDS_BY_NAME:
        return True
    return bool(getattr(module, "transposed", False))


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _has_standard_options(module: Any) -> bool:
    if isinstance(module, nn.Embedding):
        return not module.scale_grad_by_freq
    if getattr(module, "transposed", False):
        return bool(module.groups == 1)
    return True
