"""Backward passes whose gradients are differentiated again (``create_graph``), as for penalties.

Kernels compute numbers; here torch's own operations compute them again, with the parameters
themselves, so that autograd can follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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
    # An alias for every use: a weight that is used twice gets each use's gradient once.
    own = [carrier.view_as(carrier) for carrier in (slices.carrier() for slices in all_slices)]
    aliases = iter(own)
    y = compute(x, *(_tensors(rows, aliases) for rows in trained))
    wanted = [tensor for tensor in (x, *own) if tensor.requires_grad]
    found = torch.autograd.grad(y, wanted, grad, create_graph=True)
    gradients = {id(tensor): gradient for tensor, gradient in zip(wanted, found, strict=True)}
    result: list[Tensor | None] = [gradients.get(id(x))]
    for slices, alias in zip(all_slices, own, strict=True):
        gradient = gradients.get(id(alias))
        moved = None if gradient is None else axis_first(gradient, slices.axis)
        result += [None if moved is None else moved[start:stop] for start, stop in slices.rows]
    return result


def _tensors(rows: TrainedRows, aliases: Iterator[Tensor]) -> Tensors:
    own = {
        key: axis_first(next(aliases), slices.axis)
        for key, slices in zip(rows.leaves, rows.slices, strict=True)
        if slices.rows
    }
    return rows.tensors | own
