"""Linear modules: weight gradients for the trained rows only."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from fedplt.kernels.matrix_products import linear_relu, product, subtract_product
from fedplt.kernels.trained_rows import Planned, TrainedRows, differentiable_gradients
from fedplt.planning import Rows
from fedplt.torch_internals import direct_apply, hidden_backward, kernel_accepts, linear


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, trained: TrainedRows, columns: Rows | None, *leaves: Tensor
    ) -> Tensor:
        if trained.rows:  # without trained rows, the backward pass reads only the weight
            ctx.save_for_backward(x)
        ctx.trained, ctx.columns, ctx.version = trained, columns, trained.version
        return linear_relu(x, trained.tensors["weight"], trained.tensors.get("bias"))

    @staticmethod
    @hidden_backward
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        trained = ctx.trained
        grad_x = None  # (samples, inputs)
        if ctx.needs_input_grad[0]:
            trained.check_version(ctx.version)
        if not saved:
            columns = None if torch.is_grad_enabled() else trained.needed(ctx.columns)
            return input_gradient(grad, trained.tensors["weight"], columns), None, None
        (x,) = saved
        if torch.is_grad_enabled():  # only if backward was called with create_graph
            gradients = differentiable_gradients(_linear, [trained], x, grad)
            return gradients[0], None, None, *gradients[1:]
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(grad, trained.tensors["weight"], trained.needed(ctx.columns))
        return grad_x, None, None, *move_rows(trained, grad, x)


_apply_linear = direct_apply(_Linear)


def _linear(x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    return linear(x, tensors["weight"], tensors.get("bias"))


def move_rows(
    trained: TrainedRows, grad: Tensor, x: Tensor, rate: float | None = None
) -> list[Tensor | None]:
    """Do the fused step of a Linear's trained rows, or else return the gradients of its leaves.

    ``rate``: the learning rate, if a fused step is known to be possible.
    """
    if trained.is_whole:
        return move_parts(trained, [grad.t()], x, rate)
    parts = [grad.narrow(1, start, stop - start).t() for start, stop in trained.rows]
    return move_parts(trained, parts, x, rate)


def move_parts(
    trained: TrainedRows, parts: list[Tensor], x: Tensor, rate: float | None = None
) -> list[Tensor | None]:
    """:func:`move_rows` with the gradient of each range of trained rows, (rows, samples)."""
    rate = trained.fused_rate() if rate is None else rate
    if rate is None:
        biases = [part.sum(1) for part in parts] if "bias" in trained.leaves else []
        return [*(product(part, x) for part in parts), *biases]
    views = trained.views
    for part, rows in zip(parts, views["weight"], strict=True):
        subtract_product(rows, part, x, rate)
    if "bias" in views:
        ones = _ones(x.size(0), x.device, x.dtype)
        for part, rows in zip(parts, views["bias"], strict=True):
            rows.addmv_(part, ones, alpha=-rate)
    return [None] * len(trained.all_leaves())


@functools.lru_cache(maxsize=256)  # last batches of clients differ in size
def _ones(number: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.ones(number, device=device, dtype=dtype)


def input_gradient(grad: Tensor, weight: Tensor, columns: Rows | None) -> Tensor:
    if columns is None:
        return product(grad, weight)
    grad_x = grad.new_zeros(len(grad), weight.shape[1])
    for start, stop in columns:
        torch.mm(grad, weight[:, start:stop], out=grad_x[:, start:stop])
    return grad_x


def sliced_linear(input: Tensor, trained: TrainedRows) -> Tensor:
    """``input @ weight.T + bias``; the weight has its outputs first."""
    columns = trained.used(input)
    # Reshaped here, outside of the autograd function: its output may be changed in place.
    x = input if input.ndim == 2 else input.reshape(-1, input.shape[-1])
    y: Tensor = _apply_linear(x, trained, columns, *trained.all_leaves())
    return y if input.ndim == 2 else y.view(*input.shape[:-1], y.shape[-1])


def planned_linear(
    planned: Planned, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Any:
    """``F.linear``."""
    trained = planned.rows_of(weight, bias) if kernel_accepts(input) and input.ndim else None
    return NotImplemented if trained is None else sliced_linear(input, trained)


def planned_addmm(
    planned: Planned, input: Tensor, mat1: Tensor, mat2: Tensor, **options: Any
) -> Any:
    """``bias + x @ weight``, as Conv1D of the transformers package computes it."""
    if options or not kernel_accepts(mat1) or input.ndim != 1:
        return NotImplemented
    trained = planned.rows_of(mat2, input, 1)
    return NotImplemented if trained is None else sliced_linear(mat1, trained)
