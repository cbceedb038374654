"""Backward passes whose gradients are differentiated again (``create_graph``), as for penalties.

Kernels compute numbers; here torch's own operations compute them again, with the parameters
themselves, so that autograd can follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedplt.kernels.trained_rows import TrainedRows, axis_first

Tensors = dict[str, Tensor]
"""Weight and bias, outputs first."""


def differentiable_gradients(
    compute: Callable[..., Tensor], trained: Sequence[TrainedRows], x: Tensor, grad: Tensor
) -> list[Tensor | None]:
    """Of the input (None where it needs none), and of all leaves; ``compute(x, *tensors)``."""
    all_slices = [slices for rows in trained for slices in rows.slices if slices.rows]
    for slices in all_slices:
        slices.uses += 2  # torch uses the parameter itself: it must not move before
    y = compute(x, *(_tensors(rows) for rows in trained))
    own = [slices.parameter for slices in all_slices]
    wanted = [x, *own] if x.requires_grad else own
    gradients = list(torch.autograd.grad(y, wanted, grad, create_graph=True))
    result: list[Tensor | None] = [gradients.pop(0) if x.requires_grad else None]
    for slices, gradient in zip(all_slices, gradients, strict=True):
        moved = axis_first(gradient, slices.axis)
        result += [moved[start:stop] for start, stop in slices.rows]
    return result


def _tensors(rows: TrainedRows) -> Tensors:
    own = {
        key: axis_first(slices.parameter, slices.axis)
        for key, slices in zip(rows.leaves, rows.slices, strict=True)
        if slices.rows
    }
    return rows.tensors | own
