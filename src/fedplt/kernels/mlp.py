"""Consecutive Linear and ReLU modules as one autograd function.

With layers of a few hundred neurons, a large part of a step's time is Python and autograd
bookkeeping per module. A run of Linear and ReLU children of an ``nn.Sequential`` is therefore one
autograd function: the same kernels in the same order, with less between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._nn import linear
from torch.nn.modules import module as _modules

from fedplt.kernels.block_forward import has_own_forward, is_shadowed, is_standard_chain
from fedplt.kernels.linear import input_gradient, move_rows
from fedplt.kernels.plain import (
    applied,
    has_other_modes,
    is_batched,
    is_followed,
    is_plain,
    unwatched_backward,
)
from fedplt.kernels.second_order import differentiable_gradients
from fedplt.kernels.trained_rows import TrainedRows
from fedplt.planning import Rows

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
            x = linear(x, tensors["weight"], tensors.get("bias"))
            values.append(x.relu_() if link.relu else x)
        ctx.save_for_backward(*(values if links[-1].relu else values[:-1]))
        return x

    @staticmethod
    @unwatched_backward
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, links = saved, ctx.links
        first = 0 if ctx.needs_input_grad[0] else 1  # the weight of the first may change, else
        for link, version in zip(links[first:], ctx.versions[first:], strict=True):
            link.trained.check_version(version)
        if torch.is_grad_enabled():
            compute = functools.partial(_compute, links)
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
            elif links[index].relu:  # computed in this function, so it may be changed in place
                _relu_backward.grad_input(grad, values[index + 1], 0, grad_input=grad)
            grad_x = None
            if index or ctx.needs_input_grad[0]:
                weight = trained.tensors["weight"]
                grad_x = input_gradient(grad, weight, trained.needed(ctx.columns[index]))
            gradients = [*move_rows(trained, grad, x), *gradients]
            if grad_x is not None:
                grad = grad_x
        return grad_x, None, None, *gradients


_apply = applied(_Chain)


def _compute(links: list[Link], x: Tensor, *tensors: dict[str, Tensor]) -> Tensor:
    for link, own in zip(links, tensors, strict=True):
        x = linear(x, own["weight"], own.get("bias"))
        x = x.relu() if link.relu else x
    return x


def _forward(links: list[Link], x: Tensor) -> Tensor:
    columns: list[Rows | None] = []
    previous = None
    for link in links:
        columns.append(link.trained.used(x, previous=previous))
        previous = link.trained
    leaves = [leaf for link in links for leaf in link.trained.all_leaves()]
    result: Tensor = _apply(x, links, columns, *leaves)
    return result


TrainedRowsOf = Callable[[Tensor, Tensor | None], TrainedRows | None]
"""The trained rows of a weight and its bias; None where they have none (or are not the plan's)."""


class Chained:
    """The forward of an ``nn.Sequential``: runs of Linear and ReLU are one autograd function.

    What the children are is looked at in every call: hooks, replaced weights, custom forwards and
    patched classes are seen, and the children are called one by one then.
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
            # What is done in these blocks is no use of a parameter that the block must know of.
            if type(child) is nn.Linear:
                with torch._C.DisableTorchFunction():
                    links, length = self._links(children, index, input)
                    if len(links) > 1:
                        input = _forward(links, input)
                    else:
                        length = 0
            elif (
                type(child) is nn.Flatten
                and type(input) is Tensor
                and not is_followed(input)
                and not (is_observed(child) or has_global_hooks() or has_other_modes())
            ):
                with torch._C.DisableTorchFunction():
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
        # A parameter as the input (a computed weight) is a use that the block must know of.
        if isinstance(input, nn.Parameter) or not is_plain(input) or input.ndim != 2:
            return links, length
        if has_global_hooks() or has_other_modes():
            return links, length
        for child in children[index:]:
            if type(child) is nn.Linear and not is_observed(child) and not is_shadowed(child):
                parameters = child._parameters
                if not ("weight" in parameters and "bias" in parameters):
                    break  # one of them is a buffer, or computed
                trained = self.rows_of(parameters["weight"], parameters["bias"])  # type: ignore[arg-type]
                if trained is None:
                    break
                links.append(Link(trained, False))
            elif type(child) is nn.ReLU and links and not links[-1].relu and not is_observed(child):
                links[-1] = Link(links[-1].trained, True)
            else:
                break
            length += 1
        return links, length


def is_observed(module: nn.Module) -> bool:
    """Whether somebody looks at what the module takes and gives, or computes it otherwise."""
    return has_own_forward(module) or has_hooks(module)


def has_global_hooks() -> bool:
    return bool(
        _modules._global_forward_hooks
        or _modules._global_forward_pre_hooks
        or _modules._global_backward_hooks
        or _modules._global_backward_pre_hooks
    )


def has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
