"""Which torch functions run as kernels, when they are called with a planned parameter itself.

Every other use of a parameter (a changed copy, another axis, another operation) runs as torch
defines it, and autograd's gradient of the whole parameter is scattered to its slices. To add a
kernel: write the function in a new file, and add it to ``KERNELS``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedplt.kernels.block_forward import has_own_forward, is_torchs
from fedplt.kernels.convolution import sliced_convolution, sliced_transposed_convolution
from fedplt.kernels.embedding import sliced_embedding
from fedplt.kernels.linear import sliced_linear
from fedplt.kernels.norm import sliced_batch_norm, sliced_instance_norm
from fedplt.kernels.trained_rows import Statistics, TrainedRows
from fedplt.torch_internals import BatchNormBase, ConvBase, InstanceNormBase, kernel_accepts
from fedplt.torch_internals import linear as torch_linear

_attention_forward = F.multi_head_attention_forward


class Planned(Protocol):
    """The planned parameters and statistics of a model."""

    def rows_of(self, weight: Any, bias: Any, axis: int = 0) -> TrainedRows | None:
        """Of a weight whose outputs are on this axis; None where a kernel would save nothing."""

    def statistics_of(self, mean: Any, var: Any) -> Statistics | None: ...

    @property
    def has_hooks(self) -> bool:
        """Whether gradients of slices have hooks."""

    def carrier_of(self, tensor: Any) -> Any:
        """What torch's own operations take instead of a planned parameter."""

    def note_write(self) -> None:
        """Call before an operation writes to a parameter."""


Operation = Callable[..., Any]
"""Takes what is planned, then the torch function's arguments. May return NotImplemented."""


def _linear(planned: Planned, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    trained = planned.rows_of(weight, bias) if kernel_accepts(input) and input.ndim else None
    return NotImplemented if trained is None else sliced_linear(input, trained)


def _addmm(planned: Planned, input: Tensor, mat1: Tensor, mat2: Tensor, **options: Any) -> Any:
    """``bias + x @ weight``, as Conv1D of the transformers package computes it."""
    if options or not kernel_accepts(mat1) or input.ndim != 1:
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
    trained = planned.rows_of(weight, bias) if kernel_accepts(input) else None
    if trained is None or not _has_whole_groups(trained, groups):
        return NotImplemented
    return sliced_convolution(input, trained, stride, padding, dilation, groups)


def _has_whole_groups(trained: TrainedRows, groups: int) -> bool:
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
    trained = planned.rows_of(weight, bias, 1) if groups == 1 and kernel_accepts(input) else None
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
        planned.note_write()  # a lookup renormalizes the row
    standard = max_norm is None and not scale_grad_by_freq and not sparse and kernel_accepts(input)
    trained = planned.rows_of(weight, None) if standard else None
    return NotImplemented if trained is None else sliced_embedding(input, trained, padding_idx)


def _embedding_bag(planned: Planned, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("max_norm", args[3] if len(args) > 3 else None) is not None:
        planned.note_write()
    return NotImplemented


def _normalization(sliced: Callable[..., Tensor], *names: str) -> Operation:
    """``names``: the torch function's parameters, by position."""

    def operation(planned: Planned, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        statistics = planned.statistics_of(
            given.pop("running_mean", None), given.pop("running_var", None)
        )
        if statistics is None:
            return NotImplemented
        if planned.has_hooks:
            for name in ("weight", "bias"):
                given[name] = planned.carrier_of(given.get(name))
        given.pop("cudnn_enabled", None)
        return sliced(statistics=statistics, **given)

    return operation


_STATISTICS, _AFFINE = ("running_mean", "running_var"), ("weight", "bias")
_BATCH_NORM = ("training", "momentum", "eps")
_INSTANCE_NORM = ("use_input_stats", "momentum", "eps")


def _attention(planned: Planned, *args: Any, **kwargs: Any) -> Any:
    """The projections of ``nn.MultiheadAttention`` are products inside one torch function.

    While it runs, ``F.linear`` is replaced for their weights. Where torch splits a weight before
    it uses it (cross-attention), the product is torch's, and its whole gradient is computed.
    """
    # Another F.linear may compute anything. Hooks must see all uses of a weight.
    if planned.has_hooks or F.linear not in (torch_linear, _linear_in_attention):
        return NotImplemented
    names = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")
    given = [
        kwargs.get(name, args[index] if index < len(args) else None)
        for name, index in zip(names, (5, 6, 11, 12), strict=True)
    ]
    projections: dict[int, tuple[Any, TrainedRows]] = {}
    for weight, bias in (given[:2], given[2:]):
        trained = planned.rows_of(weight, bias)
        if trained is not None:
            projections[id(weight)] = (weight, trained)
            for slices in trained.slices:
                slices.uses += 1  # torch may use the weight in another way, too: never fused
    if not projections:
        return NotImplemented
    with _replaced_linear(projections):
        return _attention_forward(*args, **kwargs)


_projections: dict[int, tuple[Tensor, TrainedRows]] = {}
"""Of attention that is running: ``id(weight)`` -> the weight and its trained rows."""
_lock = threading.Lock()
_num_running = 0


@contextmanager
def _replaced_linear(projections: dict[int, tuple[Tensor, TrainedRows]]) -> Iterator[None]:
    """Inside the block, kernels compute the products with these weights."""
    global _num_running  # noqa: PLW0603 (there is one F.linear for all threads)
    with _lock:
        _projections.update(projections)
        _num_running += 1
        F.linear = _linear_in_attention
    try:
        yield
    finally:
        with _lock:
            _num_running -= 1
            if not _num_running:
                F.linear = torch_linear
                _projections.clear()


def _linear_in_attention(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    entry = _projections.get(id(weight))
    if entry is None or entry[0] is not weight or not kernel_accepts(input):
        return torch_linear(input, weight, bias)
    return sliced_linear(input, entry[1])


@dataclass(frozen=True)
class Kernel:
    """An operation that is computed for the trained rows only."""

    operation: Operation
    functions: tuple[Callable[..., Any], ...]
    """The torch functions that it replaces."""
    modules: tuple[type[nn.Module], ...] = ()
    """Modules that do nothing but call one of them with their own weight."""


KERNELS: tuple[Kernel, ...] = (
    Kernel(_linear, (torch_linear,), (nn.Linear,)),
    Kernel(_addmm, (torch.addmm,)),
    Kernel(_convolution, (F.conv1d, F.conv2d, F.conv3d), (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    Kernel(
        _transposed_convolution,
        (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    ),
    Kernel(_embedding, (F.embedding,), (nn.Embedding,)),
    Kernel(_embedding_bag, (F.embedding_bag,)),
    Kernel(
        _normalization(sliced_batch_norm, "input", *_STATISTICS, *_AFFINE, *_BATCH_NORM),
        (F.batch_norm,),
        (BatchNormBase,),
    ),
    Kernel(
        _normalization(sliced_batch_norm, "input", *_AFFINE, *_STATISTICS, *_BATCH_NORM),
        (torch.batch_norm,),
    ),
    Kernel(
        _normalization(sliced_instance_norm, "input", *_STATISTICS, *_AFFINE, *_INSTANCE_NORM),
        (F.instance_norm,),
        (InstanceNormBase,),
    ),
    Kernel(
        _normalization(sliced_instance_norm, "input", *_AFFINE, *_STATISTICS, *_INSTANCE_NORM),
        (torch.instance_norm,),
    ),
    Kernel(_attention, (F.multi_head_attention_forward,)),
)
KERNEL_OF = {
    function: kernel.operation
    for kernel in KERNELS
    for function in kernel.functions
    if is_torchs(function)
}
"""By torch function."""
_MODULES = {module for kernel in KERNELS for module in kernel.modules}
_TRANSPOSED_LINEAR = ("transformers.pytorch_utils.Conv1D",)
"""By name, because the package may not be installed."""


def has_kernel(module: nn.Module) -> bool:
    """Whether calling the module is one operation with its own weight, computed by a kernel.

    A subclass that overrides ``forward``, or a patched instance, may compute anything.
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
    if isinstance(module, ConvBase) and hasattr(kind, "_conv_forward"):
        inner = type(module)._conv_forward is kind._conv_forward
        if not inner or "_conv_forward" in vars(module):
            return False
    is_grouped = getattr(module, "transposed", False) and module.groups != 1
    return not (is_grouped or getattr(module, "scale_grad_by_freq", False))


def outputs_on_axis_1(module: nn.Module) -> bool:
    """Transposed convolutions and Conv1D have weights (inputs, outputs, ...)."""
    return is_transposed_linear(module) or bool(getattr(module, "transposed", False))


def is_transposed_linear(module: nn.Module) -> bool:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}" in _TRANSPOSED_LINEAR
