"""Forward passes whose backward computes weight gradients for the trained rows only.

One full-size forward kernel per layer. The trained rows are leaf parameters that are views of
the module's own tensors, so whatever an optimiser does to them happens in the model itself.

To support another kind of module, add a ``forward`` here and a line in ``FORWARDS``. A kind
whose weight gradient is cheap (or rarely used) can use :func:`assembled`, which computes the
whole weight gradient and hands out the trained rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn

from fedplt.trained import Rows, TrainedRows

# The functions below do as little as they can between the kernels: with small layers, Python is
# what a step costs.


def refuse_second_derivatives() -> None:
    if torch.is_grad_enabled():  # only where backward was called with create_graph
        raise RuntimeError("train_only does not support gradients of gradients (create_graph)")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, trained: TrainedRows, columns: Rows | None, *leaves: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.trained, ctx.columns = trained, columns
        return F.linear(x, trained.tensors["weight"], trained.tensors.get("bias"))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        (x,), trained = ctx.saved_tensors, ctx.trained
        weight, shape = trained.tensors["weight"], x.shape
        if grad.ndim != 2:
            x, grad = x.reshape(-1, shape[-1]), grad.reshape(-1, grad.shape[-1])
        grad_x = None  # (samples, inputs)
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(grad, weight, ctx.columns)
            grad_x = grad_x if len(shape) == 2 else grad_x.view(shape)
        return grad_x, None, None, *move_rows(trained, grad, x)


def move_rows(trained: TrainedRows, grad: Tensor, x: Tensor) -> list[Tensor | None]:
    """A fused step in the rows of a Linear; where there is none, gradients for its leaves."""
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
        rows.addmv_(part, _ones(len(x), x.device), alpha=-rate)
    return [None] * len(trained.all_leaves())


@functools.lru_cache(maxsize=16)
def _ones(number: int, device: torch.device) -> Tensor:
    return torch.ones(number, device=device)


def input_gradient(grad: Tensor, weight: Tensor, columns: Rows | None) -> Tensor:
    if columns is None:
        return grad @ weight
    grad_x = grad.new_zeros(len(grad), weight.shape[1])
    for start, stop in columns:
        torch.mm(grad, weight[:, start:stop], out=grad_x[:, start:stop])
    return grad_x


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        trained: TrainedRows,
        columns: Rows | None,
        geometry: tuple[Any, ...],
        *leaves: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.trained, ctx.columns, ctx.geometry = trained, columns, geometry
        return torch.convolution(
            x, trained.tensors["weight"], trained.tensors.get("bias"), *geometry
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        (x,), trained = ctx.saved_tensors, ctx.trained
        weight, need_x = trained.tensors["weight"], ctx.needs_input_grad[0]
        need_bias = "bias" in trained.leaves
        grad_x = None
        if trained.is_whole and ctx.columns is None:
            # One call shares the work between the three gradients.
            grad_x, *whole = _convolution_backward(ctx, grad, x, weight, [need_x, True, need_bias])
            parts = [whole]
        else:
            if need_x:
                grad_x = _convolution_input_gradient(ctx, grad, x, weight)
            parts = [
                _convolution_backward(ctx, grad[:, start:stop], x, rows, [False, True, need_bias])[
                    1:
                ]
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


def _convolution_backward(
    ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, mask: list[bool]
) -> list[Tensor]:
    gradients: list[Tensor] = torch.ops.aten.convolution_backward(
        grad, x, weight, [len(weight)], *ctx.geometry, mask
    )
    return gradients


def _convolution_input_gradient(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    only_x = [True, False, False]
    if ctx.columns is None:
        return _convolution_backward(ctx, grad, x, weight, only_x)[0]
    grad_x = torch.zeros_like(x)
    for start, stop in ctx.columns:
        part = _convolution_backward(ctx, grad, x[:, start:stop], weight[:, start:stop], only_x)
        grad_x[:, start:stop] = part[0]
    return grad_x


class _Assemble(torch.autograd.Function):
    """The whole tensor, as a function of its trained rows."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, rows: Rows, *leaves: Tensor) -> Tensor:
        ctx.rows = rows
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        return None, None, *(grad[start:stop] for start, stop in ctx.rows)


def assembled(module: nn.Module, name: str, trained: TrainedRows) -> Tensor | None:
    """A module's tensor for use in a forward pass, with gradients for its trained rows."""
    tensor: Tensor | None = getattr(module, name)
    leaves = trained.leaves.get(name)
    if tensor is None or not leaves:
        return tensor
    result: Tensor = _Assemble.apply(tensor.detach(), trained.rows, *leaves)  # type: ignore[no-untyped-call]
    return result


def _linear(module: nn.Linear, trained: TrainedRows, input: Tensor) -> Tensor:
    columns = trained.called(input.requires_grad)
    result: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
        input, trained, columns, *trained.all_leaves()
    )
    return result


def _conv2d(module: nn.Conv2d, trained: TrainedRows, input: Tensor) -> Tensor:
    x, columns = input, trained.called(input.requires_grad)
    padding: Any = module.padding
    if module.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x, padding = F.pad(x, module._reversed_padding_repeated_twice, mode=mode), (0, 0)
    geometry = (module.stride, padding, module.dilation, False, (0, 0), module.groups)
    if module.groups > 1:
        weight, bias = assembled(module, "weight", trained), assembled(module, "bias", trained)
        assert weight is not None
        return torch.convolution(x, weight, bias, *geometry)
    result: Tensor = _Convolution.apply(  # type: ignore[no-untyped-call]
        x, trained, columns, geometry, *trained.all_leaves()
    )
    return result


def _batch_norm(module: Any, trained: TrainedRows, input: Tensor) -> Tensor:
    """Batch statistics while training; only the trained channels' running statistics move."""
    weight, bias = assembled(module, "weight", trained), assembled(module, "bias", trained)
    mean, var = module.running_mean, module.running_var
    use_batch = module.training or mean is None
    if input.numel() == input.shape[1] and mean is not None:
        use_batch = False  # one value per channel has no variance: a last batch of one
    if not (use_batch and module.training and mean is not None):
        return torch.batch_norm(input, weight, bias, mean, var, use_batch, 0.0, module.eps, False)
    trained.num_batches += 1
    # Without a momentum torch averages over all batches so far; here, over this client's batches.
    momentum = 1 / trained.num_batches if module.momentum is None else module.momentum
    moved_mean, moved_var = mean.clone(), var.clone()
    y = F.batch_norm(input, moved_mean, moved_var, weight, bias, True, momentum, module.eps)
    with torch.no_grad():
        for start, stop in trained.rows:
            mean[start:stop] = moved_mean[start:stop]
            var[start:stop] = moved_var[start:stop]
    return y


def _instance_norm(module: Any, trained: TrainedRows, input: Tensor) -> Tensor:
    weight, bias = assembled(module, "weight", trained), assembled(module, "bias", trained)
    return F.instance_norm(input, None, None, weight, bias, True, 0.0, module.eps)


def _layer_norm(module: nn.LayerNorm, trained: TrainedRows, input: Tensor) -> Tensor:
    weight, bias = assembled(module, "weight", trained), assembled(module, "bias", trained)
    return F.layer_norm(input, module.normalized_shape, weight, bias, module.eps)


def _group_norm(module: nn.GroupNorm, trained: TrainedRows, input: Tensor) -> Tensor:
    weight, bias = assembled(module, "weight", trained), assembled(module, "bias", trained)
    return F.group_norm(input, module.num_groups, weight, bias, module.eps)


FORWARDS: dict[type[nn.Module], Callable[[Any, TrainedRows, Tensor], Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.modules.batchnorm._BatchNorm: _batch_norm,
    nn.modules.instancenorm._InstanceNorm: _instance_norm,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}


def forward_of(module: nn.Module) -> Callable[[Any, TrainedRows, Tensor], Tensor] | None:
    """The forward pass for a module's kind, or None where there is none.

    Parameters are named ``input`` as in torch's modules: a model may pass them by name.
    """
    return next((FORWARDS[kind] for kind in type(module).__mro__ if kind in FORWARDS), None)
