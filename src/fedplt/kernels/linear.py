"""Linear modules: weight gradients for the trained rows only."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch._C._nn import linear  # torch's own: F.linear may be patched

from fedplt.kernels.plain import applied, unwatched_backward
from fedplt.kernels.second_order import differentiable_gradients
from fedplt.kernels.trained_rows import TrainedRows
from fedplt.planning import Rows

# The functions below do as little as possible between the kernels: with small layers, Python takes
# most of the time of a step.


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, trained: TrainedRows, columns: Rows | None, *leaves: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.trained, ctx.columns, ctx.version = trained, columns, trained.version
        return linear(x, trained.tensors["weight"], trained.tensors.get("bias"))

    @staticmethod
    @unwatched_backward
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,), trained = saved, ctx.trained
        grad_x = None  # (samples, inputs)
        if ctx.needs_input_grad[0]:
            trained.check_version(ctx.version)
        if torch.is_grad_enabled():  # only where backward was called with create_graph
            gradients = differentiable_gradients(_linear, [trained], x, grad)
            return gradients[0], None, None, *gradients[1:]
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(grad, trained.tensors["weight"], trained.needed(ctx.columns))
        return grad_x, None, None, *move_rows(trained, grad, x)


_apply = applied(_Linear)


def _linear(x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    return linear(x, tensors["weight"], tensors.get("bias"))


def move_rows(trained: TrainedRows, grad: Tensor, x: Tensor) -> list[Tensor | None]:
    """Do the fused step of a Linear's trained rows; without one, return gradients of its leaves."""
    if trained.is_whole:
        parts = [grad.T]  # (rows, samples)
    else:
        parts = [grad[:, start:stop].T for start, stop in trained.rows]
    rate = trained.fused_rate()
    if rate is None:
        biases = [part.sum(1) for part in parts] if "bias" in trained.leaves else []
        return [*(part @ x for part in parts), *biases]
    for part, rows in zip(parts, trained.views["weight"], strict=True):
        rows.addmm_(part, x, alpha=-rate)
    for part, rows in zip(parts, trained.views.get("bias", ()), strict=False):
        rows.addmv_(part, _ones(len(x), x.device, x.dtype), alpha=-rate)
    return [None] * len(trained.all_leaves())


@functools.lru_cache(maxsize=16)
def _ones(number: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.ones(number, device=device, dtype=dtype)


def input_gradient(grad: Tensor, weight: Tensor, columns: Rows | None) -> Tensor:
    if columns is None:
        return grad @ weight
    grad_x = grad.new_zeros(len(grad), weight.shape[1])
    for start, stop in columns:
        torch.mm(grad, weight[:, start:stop], out=grad_x[:, start:stop])
    return grad_x


def sliced_linear(input: Tensor, trained: TrainedRows) -> Tensor:
    """``input @ weight.T + bias``; the weight has its outputs first."""
    columns = trained.used(input)
    # Reshaped here, outside of the autograd function: its output may be changed in place.
    x = input if input.ndim == 2 else input.reshape(-1, input.shape[-1])
    y: Tensor = _apply(x, trained, columns, *trained.all_leaves())
    return y if input.ndim == 2 else y.view(*input.shape[:-1], y.shape[-1])
