"""Convolutions of all kinds: weight gradients for the trained channels only."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedplt.kernels.trained_rows import Planned, TrainedRows, differentiable_gradients
from fedplt.planning import Rows
from fedplt.torch_internals import direct_apply, hidden_backward, kernel_accepts

Geometry = tuple[Any, ...]
"""stride, padding, dilation, transposed, output padding, groups"""


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        trained: TrainedRows,
        columns: Rows | None,
        geometry: Geometry,
        *leaves: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.trained, ctx.columns, ctx.geometry = trained, columns, geometry
        ctx.version = trained.version
        return _convolution(geometry, x, trained.tensors)

    @staticmethod
    @hidden_backward
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,), trained = saved, ctx.trained
        if ctx.needs_input_grad[0]:
            trained.check_version(ctx.version)
        if torch.is_grad_enabled():
            compute = functools.partial(_convolution, ctx.geometry)
            differentiable = differentiable_gradients(compute, [trained], x, grad)
            return differentiable[0], None, None, None, *differentiable[1:]
        weight, need_x = trained.tensors["weight"], ctx.needs_input_grad[0]
        need_bias = "bias" in trained.leaves
        grad_x = None
        columns = trained.needed(ctx.columns)
        if columns is not None and not _pays(columns, weight.shape[1], x):
            columns = None
        if columns is None and not _pays(trained.rows, len(weight), grad):
            # The three gradients share work in one call.
            grad_x, *whole = _gradients(ctx.geometry, grad, x, weight, (need_x, True, need_bias))
            parts = [
                [part[start:stop] for part in whole if part is not None]
                for start, stop in trained.rows
            ]
        else:
            if need_x:
                grad_x = _input_gradient(ctx.geometry, columns, grad, x, weight)
            parts = [
                _weight_gradient(ctx.geometry, grad, x, rows, start, stop, need_bias)
                for (start, stop), rows in zip(trained.rows, trained.views["weight"], strict=True)
            ]
        gradients = [part[0] for part in parts] + [part[1] for part in parts if need_bias]
        rate = trained.fused_rate()
        if rate is None:
            return grad_x, None, None, None, *gradients
        moved = trained.views["weight"] + trained.views.get("bias", [])
        for rows, gradient in zip(moved, gradients, strict=True):
            rows.sub_(gradient, alpha=rate)
        return grad_x, *[None] * (len(ctx.needs_input_grad) - 1)


_apply = direct_apply(_Convolution)


_BLOCK = 16
"""Channels that oneDNN computes together: one vector of AVX-512, or two of AVX2."""
_MIN_BLOCKED = 2**18
"""For activations with fewer values, leaving out any channel saves time, even within a block."""


def _pays(channels: Rows, num_channels: int, activation: Tensor) -> bool:
    """Whether the gradient of some channels takes less time than that of all."""
    if channels == ((0, num_channels),):
        return False
    num_blocks = sum(-(-(stop - start) // _BLOCK) for start, stop in channels)
    return num_blocks < -(-num_channels // _BLOCK) or activation.numel() < _MIN_BLOCKED


def _convolution(geometry: Geometry, x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    weight = tensors["weight"]
    if geometry[3]:  # transposed: (inputs, outputs, ...)
        weight = weight.transpose(0, 1)
    return torch.convolution(x, weight, tensors.get("bias"), *geometry)


def _gradients(
    geometry: Geometry, grad: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
) -> list[Tensor]:
    """Gradients of the input, the weight (outputs first, like ``weight``) and the bias."""
    transposed = geometry[3]
    gradients: list[Tensor] = torch.ops.aten.convolution_backward(
        grad, x, weight.transpose(0, 1) if transposed else weight, [len(weight)], *geometry, wanted
    )
    if transposed and wanted[1]:
        gradients = [gradients[0], gradients[1].transpose(0, 1), gradients[2]]
    return gradients


def _weight_gradient(
    geometry: Geometry, grad: Tensor, x: Tensor, rows: Tensor, start: int, stop: int, bias: bool
) -> list[Tensor]:
    """Weight gradient of output channels ``start`` to ``stop``; with groups, of whole groups."""
    groups, grad_rows = geometry[-1], grad[:, start:stop]
    if groups > 1:
        width, taken = grad.shape[1] // groups, x.shape[1] // groups
        first, last = start // width, stop // width
        x, geometry = x[:, first * taken : last * taken], (*geometry[:-1], last - first)
    return _gradients(geometry, grad_rows, x, rows, (False, True, bias))[1:]


def _input_gradient(
    geometry: Geometry, columns: Rows | None, grad: Tensor, x: Tensor, weight: Tensor
) -> Tensor:
    only_x = (True, False, False)
    if columns is None:
        return _gradients(geometry, grad, x, weight, only_x)[0]
    grad_x = torch.zeros_like(x)
    for start, stop in columns:
        part = _gradients(geometry, grad, x[:, start:stop], weight[:, start:stop], only_x)
        grad_x[:, start:stop] = part[0]
    return grad_x


def planned_convolution(
    planned: Planned,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """``F.conv1d`` to ``F.conv3d``; the input may be one example without a batch."""
    trained = planned.rows_of(weight, bias) if kernel_accepts(input) else None
    if trained is None or not _has_whole_groups(trained, groups):
        return NotImplemented
    columns = trained.used(input)
    dimensions = weight.ndim - 2
    x = input if input.ndim == dimensions + 2 else input[None]
    stride, dilation = _each(stride, dimensions), _each(dilation, dimensions)
    if isinstance(padding, str):
        x, padding = _padded(x, padding, weight.shape[2:], dilation), 0
    zeros = (0,) * dimensions
    geometry = (stride, _each(padding, dimensions), dilation, False, zeros, groups)
    y: Tensor = _apply(x, trained, columns, geometry, *trained.all_leaves())
    return y if input.ndim == dimensions + 2 else y[0]


def _has_whole_groups(trained: TrainedRows, groups: int) -> bool:
    each = len(trained.tensors["weight"]) // groups
    return groups == 1 or all(start % each == stop % each == 0 for start, stop in trained.rows)


def planned_transposed_convolution(
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
    """``F.conv_transpose1d`` to ``F.conv_transpose3d``, without groups."""
    trained = planned.rows_of(weight, bias, 1) if groups == 1 and kernel_accepts(input) else None
    if trained is None:
        return NotImplemented
    trained.used(input)
    dimensions = weight.ndim - 2
    x = input if input.ndim == dimensions + 2 else input[None]
    sizes = (_each(value, dimensions) for value in (stride, padding, dilation))
    geometry = (*sizes, True, _each(output_padding, dimensions), 1)
    y: Tensor = _apply(x, trained, None, geometry, *trained.all_leaves())
    return y if input.ndim == dimensions + 2 else y[0]


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    """One number for every dimension."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dimensions if len(values) == 1 else values


def _padded(x: Tensor, padding: str, kernel: Any, dilation: Any) -> Tensor:
    """The input with ``padding="same"``; if the total is odd, the end gets one more."""
    if padding == "valid":
        return x
    pads: list[int] = []
    for size, step in zip(reversed(kernel), reversed(dilation), strict=True):
        total = step * (size - 1)
        pads += [total // 2, total - total // 2]
    return pad(x, pads)


def keep_layout(y: Tensor) -> None:
    """If an activation is channels-last, give its gradient the same memory layout.

    The gradient of a mean or a slice has another layout, which makes a ReLU's backward pass take
    ten times as long.
    """
    is_last = y.ndim == 4 and y.is_contiguous(memory_format=torch.channels_last)
    if is_last and y.requires_grad and not y.is_contiguous():
        y.register_hook(_channels_last)


def _channels_last(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)
