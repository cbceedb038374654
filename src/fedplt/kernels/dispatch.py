"""Which torch functions run as kernels when they are called with a planned parameter itself.

All other uses of a parameter (a changed copy, another axis, another operation) run in torch, and
autograd's gradient of the whole parameter is scattered to its slices. To add a kernel, write a
function ``planned_...`` in a new module, and add it to ``KERNELS``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedplt.kernels.block_forward import has_own_forward, is_torchs
from fedplt.kernels.convolution import planned_convolution, planned_transposed_convolution
from fedplt.kernels.embedding import planned_embedding, planned_embedding_bag
from fedplt.kernels.linear import planned_addmm, planned_linear, sliced_linear
from fedplt.kernels.norm import planned_batch_norm, planned_instance_norm, statistics_last
from fedplt.kernels.trained_rows import Planned, TrainedRows
from fedplt.torch_internals import BatchNormBase, ConvBase, InstanceNormBase, kernel_accepts
from fedplt.torch_internals import linear as torch_linear

_attention_forward = F.multi_head_attention_forward


def _attention(planned: Planned, *args: Any, **kwargs: Any) -> Any:
    """Kernels for the projections of ``nn.MultiheadAttention``, inside one torch function.

    While the function runs, ``F.linear`` is replaced for their weights. If torch splits a weight
    before using it (cross-attention), torch computes the product and the whole gradient.
    """
    # A patched F.linear may compute anything. Hooks must see all uses of a weight.
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
                slices.uses += 1  # torch may also use the weight in another way: never fuse
    if not projections:
        return NotImplemented
    with _replaced_linear(projections):
        return _attention_forward(*args, **kwargs)


_projections: dict[int, tuple[Tensor, TrainedRows]] = {}
"""For running attention calls: ``id(weight)`` -> the weight and its trained rows."""
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

    operation: Callable[..., Any]
    """Called with a :class:`Planned` and the function's arguments. May return NotImplemented."""
    functions: tuple[Callable[..., Any], ...]
    """The torch functions that the kernel replaces."""
    modules: tuple[type[nn.Module], ...] = ()
    """Modules that do nothing but call one of these functions with their weight."""


KERNELS: tuple[Kernel, ...] = (
    Kernel(planned_linear, (torch_linear,), (nn.Linear,)),
    Kernel(planned_addmm, (torch.addmm,)),
    Kernel(planned_convolution, (F.conv1d, F.conv2d, F.conv3d), (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    Kernel(
        planned_transposed_convolution,
        (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    ),
    Kernel(planned_embedding, (F.embedding,), (nn.Embedding,)),
    Kernel(planned_embedding_bag, (F.embedding_bag,)),
    Kernel(planned_batch_norm, (F.batch_norm,), (BatchNormBase,)),
    Kernel(statistics_last(planned_batch_norm), (torch.batch_norm,)),
    Kernel(planned_instance_norm, (F.instance_norm,), (InstanceNormBase,)),
    Kernel(statistics_last(planned_instance_norm), (torch.instance_norm,)),
    Kernel(_attention, (F.multi_head_attention_forward,)),
)
KERNEL_OF = {
    function: kernel.operation
    for kernel in KERNELS
    for function in kernel.functions
    if is_torchs(function)
}
"""The kernel of each torch function."""
_MODULES = {module for kernel in KERNELS for module in kernel.modules}
_TRANSPOSED_LINEAR = ("transformers.pytorch_utils.Conv1D",)
"""Named by path, because the package may not be installed."""


def has_kernel(module: nn.Module) -> bool:
    """Whether a call of the module is one operation with its weight that has a kernel.

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
    """Whether weights are (inputs, outputs, ...): transposed convolutions and Conv1D."""
    return is_transposed_linear(module) or bool(getattr(module, "transposed", False))


def is_transposed_linear(module: nn.Module) -> bool:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}" in _TRANSPOSED_LINEAR
