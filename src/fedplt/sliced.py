"""Forward passes whose backward computes weight gradients for the trained rows only.

One full-size forward kernel per layer. The trained rows are leaf parameters that are views of
the module's own tensors, so whatever an optimiser does to them happens in the model itself.

To support another kind of module, add a ``forward`` here and a line in ``FORWARDS``. A kind
whose weight gradient is cheap (or rarely used) can use :func:`assembled`, which computes the
whole weight gradient and hands out the trained rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Rows = tuple[tuple[int, int], ...]
"""Trained rows of a tensor along its sliced axis, as ``(start, stop)`` pairs."""


@dataclass
class TrainedRows:
    """What is trained of one module: rows and, for each of its tensors, their leaf parameters."""

    rows: Rows
    leaves: dict[str, list[nn.Parameter]]
    num_batches: int = field(default=0, init=False)

    def of(self, name: str) -> list[nn.Parameter]:
        return self.leaves.get(name, [])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows, *leaves: Tensor
    ) -> Tensor:
        ctx.rows, ctx.num_biases = rows, len(leaves) - len(rows)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        grad, x = grad.flatten(0, -2), x.flatten(0, -2)  # (samples, outputs), (samples, inputs)
        parts = [grad[:, start:stop] for start, stop in ctx.rows]
        weights = [part.T @ x for part in parts]
        biases = [part.sum(0) for part in parts[: ctx.num_biases]]
        return grad_x, None, None, None, *weights, *biases


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Rows,
        geometry: tuple[Any, ...],
        *leaves: Tensor,
    ) -> Tensor:
        ctx.rows, ctx.geometry, ctx.num_biases = rows, geometry, len(leaves) - len(rows)
        ctx.save_for_backward(x, weight)
        return torch.convolution(x, weight, bias, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        whole = ctx.rows == ((0, len(weight)),)
        need_x, need_bias = ctx.needs_input_grad[0], ctx.num_biases > 0

        def gradients(start: int, stop: int, mask: list[bool]) -> list[Tensor]:
            part, rows = grad[:, start:stop], weight[start:stop]
            all_three: list[Tensor] = torch.ops.aten.convolution_backward(
                part, x, rows, [stop - start], *ctx.geometry, mask
            )
            return all_three

        if whole:  # one call shares the work between the three gradients
            grad_in, grad_w, grad_b = gradients(0, len(weight), [need_x, True, need_bias])
            return grad_in, None, None, None, None, grad_w, *([grad_b] if need_bias else [])
        grad_x = gradients(0, len(weight), [True, False, False])[0] if need_x else None
        parts = [gradients(start, stop, [False, True, need_bias]) for start, stop in ctx.rows]
        biases = [part[2] for part in parts[: ctx.num_biases]]
        return grad_x, None, None, None, None, *(part[1] for part in parts), *biases


class _Assemble(torch.autograd.Function):
    """The whole tensor, as a function of its trained rows."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, rows: Rows, *leaves: Tensor) -> Tensor:
        ctx.rows = rows
        return whole.view_as(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(grad[start:stop] for start, stop in ctx.rows)


def assembled(module: nn.Module, name: str, trained: TrainedRows) -> Tensor | None:
    """A module's tensor for use in a forward pass, with gradients for its trained rows."""
    tensor: Tensor | None = getattr(module, name)
    leaves = trained.of(name)
    if tensor is None or not leaves:
        return tensor
    result: Tensor = _Assemble.apply(tensor.detach(), trained.rows, *leaves)  # type: ignore[no-untyped-call]
    return result


def _linear(module: nn.Linear, trained: TrainedRows, x: Tensor) -> Tensor:
    bias = None if module.bias is None else module.bias.detach()
    leaves = trained.of("weight") + trained.of("bias")
    result: Tensor = _Linear.apply(x, module.weight.detach(), bias, trained.rows, *leaves)  # type: ignore[no-untyped-call]
    return result


def _conv2d(module: nn.Conv2d, trained: TrainedRows, x: Tensor) -> Tensor:
    padding: Any = module.padding
    if module.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x, padding = F.pad(x, module._reversed_padding_repeated_twice, mode=mode), (0, 0)
    bias = None if module.bias is None else module.bias.detach()
    geometry = (module.stride, padding, module.dilation, False, (0, 0), module.groups)
    if module.groups > 1:
        weight, bias_ = assembled(module, "weight", trained), assembled(module, "bias", trained)
        assert weight is not None
        return torch.convolution(x, weight, bias_, *geometry)
    leaves = trained.of("weight") + trained.of("bias")
    result: Tensor = _Convolution.apply(  # type: ignore[no-untyped-call]
        x, module.weight.detach(), bias, trained.rows, geometry, *leaves
    )
    return result


def _batch_norm(module: Any, trained: TrainedRows, x: Tensor) -> Tensor:
    """Batch statistics while training; only the trained channels' running statistics move."""
    weight, bias = assembled(module, "weight", trained), assembled(module, "bias", trained)
    mean, var = module.running_mean, module.running_var
    use_batch = module.training or mean is None
    if module.training and x.numel() == x.shape[1]:
        use_batch = mean is None  # one value per channel has no variance: a last batch of one
    if not (use_batch and module.training and mean is not None):
        return F.batch_norm(x, mean, var, weight, bias, use_batch, 0.0, module.eps)
    trained.num_batches += 1
    # Without a momentum torch averages over all batches so far; here, over this client's batches.
    momentum = 1 / trained.num_batches if module.momentum is None else module.momentum
    moved_mean, moved_var = mean.clone(), var.clone()
    y = F.batch_norm(x, moved_mean, moved_var, weight, bias, True, momentum, module.eps)
    with torch.no_grad():
        for start, stop in trained.rows:
            mean[start:stop] = moved_mean[start:stop]
            var[start:stop] = moved_var[start:stop]
    return y


def _instance_norm(module: Any, trained: TrainedRows, x: Tensor) -> Tensor:
    weight, bias = assembled(module, "weight", trained), assembled(module, "bias", trained)
    return F.instance_norm(x, None, None, weight, bias, True, 0.0, module.eps)


def _layer_norm(module: nn.LayerNorm, trained: TrainedRows, x: Tensor) -> Tensor:
    weight, bias = assembled(module, "weight", trained), assembled(module, "bias", trained)
    return F.layer_norm(x, module.normalized_shape, weight, bias, module.eps)


def _group_norm(module: nn.GroupNorm, trained: TrainedRows, x: Tensor) -> Tensor:
    weight, bias = assembled(module, "weight", trained), assembled(module, "bias", trained)
    return F.group_norm(x, module.num_groups, weight, bias, module.eps)


FORWARDS: dict[type[nn.Module], Callable[[Any, TrainedRows, Tensor], Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.modules.batchnorm._BatchNorm: _batch_norm,
    nn.modules.instancenorm._InstanceNorm: _instance_norm,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}


def forward_of(module: nn.Module) -> Callable[[Any, TrainedRows, Tensor], Tensor] | None:
    """The forward pass for a module's kind, or None where there is none."""
    return next((FORWARDS[kind] for kind in type(module).__mro__ if kind in FORWARDS), None)
