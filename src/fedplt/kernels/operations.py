"""Operations that are computed by kernels, where they are called with a planned parameter itself.

Everything else that a model does with a parameter (a changed copy of it, another axis, another
operation) is torch's own, and autograd's whole gradient of it is scattered to the slices.
To add a kernel: a function in a file of its own, and an entry in ``KERNELS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from fedplt.kernels.attention import can_catch, catching
from fedplt.kernels.block_forward import has_own_forward, is_torchs
from fedplt.kernels.convolution import sliced_convolution, sliced_transposed_convolution
from fedplt.kernels.embedding import sliced_embedding
from fedplt.kernels.linear import sliced_linear
from fedplt.kernels.norm import sliced_batch_norm, sliced_instance_norm
from fedplt.kernels.plain import is_plain
from fedplt.kernels.trained_rows import Statistics, TrainedRows

_attention_forward = F.multi_head_attention_forward


class Planned(Protocol):
    """Knows the planned parameters and statistics of a model."""

    def rows_of(self, weight: Any, bias: Any, axis: int = 0) -> TrainedRows | None:
        """Of a weight whose outputs are on this axis; None where there is nothing to gain."""

    def statistics_of(self, mean: Any, var: Any) -> Statistics | None: ...

    @property
    def has_hooks(self) -> bool:
        """Whether hooks look at gradients of slices."""

    def carrier_of(self, tensor: Any) -> Any:
        """What torch's own operations take instead of a planned parameter."""

    @property
    def own_writes(self) -> Any:
        """Whom to tell before an operation writes to a parameter (``note()``)."""


Operation = Callable[..., Any]
"""Called with what is planned and the operation's own arguments; may give NotImplemented."""


def _linear(planned: Planned, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    trained = planned.rows_of(weight, bias) if is_plain(input) and input.ndim else None
    return NotImplemented if trained is None else sliced_linear(input, trained)


def _addmm(planned: Planned, input: Tensor, mat1: Tensor, mat2: Tensor, **options: Any) -> Any:
    """``bias + x @ weight``, as Conv1D of the transformers package does it."""
    if options or not is_plain(mat1) or input.ndim != 1:
        return NotImplemented
    trained = planned.rows_of(mat2, input, 1)
    return NotImplemented if trained is None else sliced_linear(mat1, trained)


def _convolution(
    planned: Planned,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    trained = planned.rows_of(weight, bias) if is_plain(input) else None
    if trained is None or not _whole_groups(trained, groups):
        return NotImplemented
    return sliced_convolution(input, trained, stride, padding, dilation, groups)


def _whole_groups(trained: TrainedRows, groups: int) -> bool:
    each = len(trained.tensors["weight"]) // groups
    return groups == 1 or all(start % each == stop % each == 0 for start, stop in trained.rows)


def _transposed_convolution(
    planned: Planned,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    trained = planned.rows_of(weight, bias, 1) if groups == 1 and is_plain(input) else None
    if trained is None:
        return NotImplemented
    return sliced_transposed_convolution(input, trained, stride, padding, output_padding, dilation)


def _embedding(
    planned: Planned,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None:
        planned.own_writes.note()  # looking up a row changes it
    standard = max_norm is None and not scale_grad_by_freq and not sparse and is_plain(input)
    trained = planned.rows_of(weight, None) if standard else None
    return NotImplemented if trained is None else sliced_embedding(input, trained, padding_idx)


def _embedding_bag(planned: Planned, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("max_norm", args[3] if len(args) > 3 else None) is not None:
        planned.own_writes.note()
    return NotImplemented


def _batch_norm(
    planned: Planned,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    statistics = planned.statistics_of(running_mean, running_var)
    if statistics is None:
        return NotImplemented
    if planned.has_hooks:
        weight, bias = planned.carrier_of(weight), planned.carrier_of(bias)
    return sliced_batch_norm(input, statistics, weight, bias, training, momentum, eps)


def _instance_norm(
    planned: Planned,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    statistics = planned.statistics_of(running_mean, running_var)
    if statistics is None:
        return NotImplemented
    if planned.has_hooks:
        weight, bias = planned.carrier_of(weight), planned.carrier_of(bias)
    return sliced_instance_norm(input, statistics, weight, bias, use_input_stats, momentum, eps)


def _torch_batch_norm(planned: Planned, *args: Any, **kwargs: Any) -> Any:
    """The same with other names and another order."""
    names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum")
    given = dict(zip((*names, "eps", "cudnn_enabled"), args, strict=False)) | kwargs
    given.pop("cudnn_enabled", None)
    return _batch_norm(planned, **given)


def _torch_instance_norm(planned: Planned, *args: Any, **kwargs: Any) -> Any:
    names = ("input", "weight", "bias", "running_mean", "running_var", "use_input_stats")
    given = dict(zip((*names, "momentum", "eps", "cudnn_enabled"), args, strict=False)) | kwargs
    given.pop("cudnn_enabled", None)
    return _instance_norm(planned, **given)


def _attention(planned: Planned, *args: Any, **kwargs: Any) -> Any:
    """Its projections are products inside of one function of torch."""
    # Hooks must see all uses of a weight, and it may use one in other ways, too.
    if planned.has_hooks or not can_catch():
        return NotImplemented
    names = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")
    places = (5, 6, 11, 12)
    given = [
        kwargs.get(name, args[place] if place < len(args) else None)
        for name, place in zip(names, places, strict=True)
    ]
    caught: dict[int, tuple[Any, TrainedRows]] = {}
    for weight, bias in (given[:2], given[2:]):
        trained = planned.rows_of(weight, bias)
        if trained is not None:
            caught[id(weight)] = (weight, trained)
            for slices in trained.slices:
                slices.uses += 1  # torch may use the weight in another way, too: never fused
    if not caught:
        return NotImplemented
    with catching(caught):
        return _attention_forward(*args, **kwargs)


@dataclass(frozen=True)
class Kernel:
    """An operation that is computed for the trained rows only."""

    operation: Operation
    functions: tuple[Callable[..., Any], ...]
    """The functions of torch that it stands for."""
    modules: tuple[type[nn.Module], ...] = ()
    """Modules that do nothing but call one of them with their own weight."""


KERNELS: tuple[Kernel, ...] = (
    Kernel(_linear, (torch._C._nn.linear,), (nn.Linear,)),
    Kernel(_addmm, (torch.addmm,)),
    Kernel(_convolution, (F.conv1d, F.conv2d, F.conv3d), (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    Kernel(
        _transposed_convolution,
        (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    ),
    Kernel(_embedding, (F.embedding,), (nn.Embedding,)),
    Kernel(_embedding_bag, (F.embedding_bag,)),
    Kernel(_batch_norm, (F.batch_norm,), (_BatchNorm,)),
    Kernel(_torch_batch_norm, (torch.batch_norm,)),
    Kernel(_instance_norm, (F.instance_norm,), (_InstanceNorm,)),
    Kernel(_torch_instance_norm, (torch.instance_norm,)),
    Kernel(_attention, (F.multi_head_attention_forward,)),
)
OPERATIONS = {
    function: kernel.operation
    for kernel in KERNELS
    for function in kernel.functions
    if is_torchs(function)
}
_MODULES = {module for kernel in KERNELS for module in kernel.modules}
LINEAR_BY_NAME = ("transformers.pytorch_utils.Conv1D",)
"""Kinds of packages that may not be installed: Linear modules with a transposed weight."""


def has_kernel(module: nn.Module) -> bool:
    """Whether calling the module is one operation with its own weight, computed by a kernel here.

    A subclass with a forward of its own, or a patched instance, may do anything before and after.
    """
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "parametrizations"):
        return False
    if set(module._parameters) - {"weight", "bias"} or has_own_forward(module):
        return False
    if is_transposed_linear(module):
        return True
    kind = next((kind for kind in type(module).__mro__ if kind in _MODULES), None)
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
