"""Embeddings: gradients for the trained vocabulary rows only."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from fedplt.kernels.trained_rows import Planned, TrainedRows, differentiable_gradients
from fedplt.torch_internals import direct_apply, hidden_backward, is_batched, kernel_accepts


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, indices: Tensor, trained: TrainedRows, padding: int | None, *leaves: Tensor
    ) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.trained, ctx.padding = trained, padding
        return embedding(indices, trained.tensors["weight"])

    @staticmethod
    @hidden_backward
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (indices,), trained = saved, ctx.trained
        if torch.is_grad_enabled():
            compute = functools.partial(_embedding, ctx.padding)
            _, *differentiable = differentiable_gradients(compute, [trained], indices, grad)
            return None, None, None, *differentiable
        indices, grad = indices.reshape(-1), grad.reshape(-1, grad.shape[-1])
        rate = trained.fused_rate()
        gradients: list[Tensor | None] = []
        for (start, stop), rows in zip(trained.rows, trained.views["weight"], strict=True):
            chosen = (indices >= start) & (indices < stop)
            if ctx.padding is not None:
                chosen &= indices != ctx.padding
            if is_batched(grad):  # many gradients at once
                part = torch.where(chosen[:, None], grad, 0.0)
                where = (indices - start).clamp(0, stop - start - 1)
                gradients.append(torch.zeros_like(rows).index_add(0, where, part))
                continue
            where, part = indices[chosen] - start, grad[chosen]
            if rate is None:
                gradients.append(torch.zeros_like(rows).index_add_(0, where, part))
            else:
                rows.index_add_(0, where, part, alpha=-rate)
                gradients.append(None)
        return None, None, None, *gradients


_apply = direct_apply(_Embedding)


def _embedding(padding: int | None, indices: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    return embedding(indices, tensors["weight"], padding)


def planned_embedding(
    planned: Planned,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """``F.embedding``."""
    if max_norm is not None:
        planned.note_write()  # a lookup renormalizes the row
    standard = max_norm is None and not scale_grad_by_freq and not sparse and kernel_accepts(input)
    trained = planned.rows_of(weight, None) if standard else None
    if trained is None:
        return NotImplemented
    trained.used(input)
    if padding_idx is not None and padding_idx < 0:
        padding_idx += len(weight)
    return _apply(input, trained, padding_idx, *trained.all_leaves())


def planned_embedding_bag(planned: Planned, *args: Any, **kwargs: Any) -> Any:
    """``F.embedding_bag``: no kernel, but a lookup may write."""
    if kwargs.get("max_norm", args[3] if len(args) > 3 else None) is not None:
        planned.note_write()
    return NotImplemented
