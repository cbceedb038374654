"""Linear modules, alone or in chains with ReLU: weight gradients for the trained rows only.

With layers of a few hundred neurons, much of a step's time is Python and autograd bookkeeping per
module. So consecutive Linear and ReLU children of an ``nn.Sequential`` are one autograd function:
the same kernels in the same order, with less between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedplt.kernels.block_forward import has_own_forward, is_shadowed, is_standard_chain
from fedplt.kernels.frozen_activations import is_frozen
from fedplt.kernels.products import linear_relu, product, subtract_product
from fedplt.kernels.trained_rows import Planned, TrainedRows, differentiable_gradients
from fedplt.planning import Rows
from fedplt.torch_internals import (
    DisableTorchFunction,
    direct_apply,
    has_global_hooks,
    has_hooks,
    has_other_modes,
    hidden_backward,
    is_batched,
    kernel_accepts,
    linear,
)

# The functions below do as little as possible between the kernels: with small layers, Python takes
# most of the time of a step.


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
        if torch.is_grad_enabled():  # only where backward was called with create_graph
            gradients = differentiable_gradients(_linear, [trained], x, grad)
            return gradients[0], None, None, *gradients[1:]
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(grad, trained.tensors["weight"], trained.needed(ctx.columns))
        return grad_x, None, None, *move_rows(trained, grad, x)


_apply_linear = direct_apply(_Linear)


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
        return [*(product(part, x) for part in parts), *biases]
    for part, rows in zip(parts, trained.views["weight"], strict=True):
        subtract_product(rows, part, x, rate)
    for part, rows in zip(parts, trained.views.get("bias", ()), strict=False):
        rows.addmv_(part, _ones(len(x), x.device, x.dtype), alpha=-rate)
    return [None] * len(trained.all_leaves())


@functools.lru_cache(maxsize=16)
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


# Chains.

_relu_backward = torch.ops.aten.threshold_backward


class Link(NamedTuple):
    """A Linear with trained rows, and whether a ReLU follows it."""

    trained: TrainedRows
    relu: bool


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, links: list[Link], columns: list[Rows | None], *leaves: Tensor
    ) -> Tensor:
        ctx.links, ctx.columns = links, columns
        ctx.versions = [link.trained.version for link in links]
        values = [x]  # the input of every link, and the output of the last
        for link in links:
            tensors = link.trained.tensors
            x = linear_relu(x, tensors["weight"], tensors.get("bias"), link.relu)
            values.append(x)
        ctx.save_for_backward(*(values if links[-1].relu else values[:-1]))
        return x

    @staticmethod
    @hidden_backward
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, links = saved, ctx.links
        first = 0 if ctx.needs_input_grad[0] else 1  # without it, the first weight is not read
        for link, version in zip(links[first:], ctx.versions[first:], strict=True):
            link.trained.check_version(version)
        if torch.is_grad_enabled():
            compute = functools.partial(_chain, links)
            trained = [link.trained for link in links]
            differentiable = differentiable_gradients(compute, trained, values[0], grad)
            return differentiable[0], None, None, *differentiable[1:]
        gradients: list[Tensor | None] = []
        last = len(links) - 1
        in_place = not is_batched(grad)
        for index in range(last, -1, -1):
            trained, x = links[index].trained, values[index]
            if links[index].relu and (index == last or not in_place):
                grad = _relu_backward(grad, values[index + 1], 0)
            elif links[index].relu:  # computed here, so it may be changed in place
                _relu_backward.grad_input(grad, values[index + 1], 0, grad_input=grad)
            grad_x = None
            if index or ctx.needs_input_grad[0]:
                weight = trained.tensors["weight"]
                grad_x = input_gradient(grad, weight, trained.needed(ctx.columns[index]))
            gradients = [*move_rows(trained, grad, x), *gradients]
            if grad_x is not None:
                grad = grad_x
        return grad_x, None, None, *gradients


_apply_chain = direct_apply(_Chain)


def _chain(links: list[Link], x: Tensor, *tensors: dict[str, Tensor]) -> Tensor:
    for link, own in zip(links, tensors, strict=True):
        x = linear(x, own["weight"], own.get("bias"))
        x = x.relu() if link.relu else x
    return x


def _run_chain(links: list[Link], x: Tensor) -> Tensor:
    columns: list[Rows | None] = []
    previous = None
    for link in links:
        columns.append(link.trained.used(x, previous=previous))
        previous = link.trained
    leaves = [leaf for link in links for leaf in link.trained.all_leaves()]
    result: Tensor = _apply_chain(x, links, columns, *leaves)
    return result


TrainedRowsOf = Callable[[Tensor, Tensor | None], TrainedRows | None]
"""The trained rows of a weight and its bias; None where they are not planned."""


class Chained:
    """The forward of an ``nn.Sequential``: runs of Linear and ReLU are one autograd function.

    Every call checks its children: with hooks, replaced weights, custom forwards or patched
    classes, they are called one by one.
    """

    def __init__(self, sequential: nn.Sequential, rows_of: TrainedRowsOf) -> None:
        self.sequential, self.rows_of = sequential, rows_of

    def __call__(self, input: Any) -> Any:
        if not is_standard_chain(self.sequential):
            return type(self.sequential).forward(self.sequential, input)
        children = list(self.sequential._modules.values())
        index = 0
        while index < len(children):
            child, length = children[index], 0
            # No operation that is hidden here uses a parameter outside of a kernel.
            if type(child) is nn.Linear:
                with DisableTorchFunction():
                    links, length = self._links(children, index, input)
                    if len(links) > 1:
                        input = _run_chain(links, input)
                    else:
                        length = 0
            elif (
                type(child) is nn.Flatten
                and type(input) is Tensor
                and not is_frozen(input)
                and not (_is_observed(child) or has_global_hooks() or has_other_modes())
            ):
                with DisableTorchFunction():
                    input = child(input)
                length = 1
            if not length:
                input = child(input)
                length = 1
            index += length
        return input

    def _links(self, children: list[Any], index: int, input: Any) -> tuple[list[Link], int]:
        """The run of Linear and ReLU children from here on, and how many children it has."""
        links: list[Link] = []
        length = 0
        # A parameter as the input (a computed weight) is a use that the block must note.
        if isinstance(input, nn.Parameter) or not kernel_accepts(input) or input.ndim != 2:
            return links, length
        if has_global_hooks() or has_other_modes():
            return links, length
        for child in children[index:]:
            if type(child) is nn.Linear and not _is_observed(child) and not is_shadowed(child):
                parameters = child._parameters
                if not ("weight" in parameters and "bias" in parameters):
                    break  # one of them is a buffer, or computed
                trained = self.rows_of(parameters["weight"], parameters["bias"])  # type: ignore[arg-type]
                if trained is None:
                    break
                links.append(Link(trained, False))
            elif (
                type(child) is nn.ReLU and links and not links[-1].relu and not _is_observed(child)
            ):
                links[-1] = Link(links[-1].trained, True)
            else:
                break
            length += 1
        return links, length


def _is_observed(module: nn.Module) -> bool:
    """Whether hooks see the module's inputs and outputs, or it has a custom forward."""
    return has_own_forward(module) or has_hooks(module)
