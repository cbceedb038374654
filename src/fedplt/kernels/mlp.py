"""Consecutive Linear and ReLU modules as one autograd function.

With layers of a few hundred neurons, a large part of a step's time is Python and autograd
bookkeeping per module. A run of Linear and ReLU children of an ``nn.Sequential`` is therefore one
autograd function: the same kernels in the same order, with less between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedplt.kernels.linear import (
    input_gradient,
    is_autocast,
    move_rows,
    refuse_second_derivatives,
)
from fedplt.kernels.trained_rows import Rows, TrainedRows
from fedplt.planning import dotted

_relu_backward = torch.ops.aten.threshold_backward


@dataclass(frozen=True, eq=False)
class Link:
    """A Linear with trained rows, and whether a ReLU follows it."""

    trained: TrainedRows
    relu: bool


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, links: list[Link], columns: list[Rows | None], *leaves: Tensor
    ) -> Tensor:
        ctx.links, ctx.columns = links, columns
        values = [x]  # the input of every link, and the output of the last
        for link in links:
            tensors = link.trained.tensors
            x = F.linear(x, tensors["weight"], tensors.get("bias"))
            values.append(x.relu_() if link.relu else x)
        ctx.save_for_backward(*(values if links[-1].relu else values[:-1]))
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        values, links = ctx.saved_tensors, ctx.links
        gradients: list[Tensor | None] = []
        last = len(links) - 1
        for index in range(last, -1, -1):
            trained, x = links[index].trained, values[index]
            if links[index].relu and index == last:
                grad = _relu_backward(grad, values[index + 1], 0)
            elif links[index].relu:  # computed in this function, so it may be changed in place
                _relu_backward.grad_input(grad, values[index + 1], 0, grad_input=grad)
            grad_x = None
            if index or ctx.needs_input_grad[0]:
                weight = trained.tensors["weight"]
                grad_x = input_gradient(grad, weight, ctx.columns[index])
            gradients = [*move_rows(trained, grad, x), *gradients]
            if grad_x is not None:
                grad = grad_x
        return grad_x, None, None, *gradients


def _forward(links: list[Link], standard: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if x.ndim != 2 or is_autocast(x):
        return standard(x)
    columns, needs_gradient = [], x.requires_grad
    for link in links:
        columns.append(link.trained.called(needs_gradient))
        needs_gradient = True
    leaves = [leaf for link in links for leaf in link.trained.all_leaves()]
    result: Tensor = _Chain.apply(x, links, columns, *leaves)  # type: ignore[no-untyped-call]
    return result


def chained(
    sequential: nn.Sequential, prefix: str, trained: Mapping[str, TrainedRows]
) -> Callable[[Any], Any] | None:
    """A forward pass for an ``nn.Sequential`` with its runs chained; None where it has none."""
    if type(sequential).forward is not nn.Sequential.forward:
        return None
    steps: list[Callable[[Any], Any]] = []
    found = False
    for run in _runs(sequential, prefix, trained):
        links = [Link(trained[name], relu) for name, relu in run.links]
        if len(links) > 1:
            found = True
            standard = functools.partial(_one_by_one, run.modules)
            steps.append(functools.partial(_forward, links, standard))
        else:
            steps += run.modules
    return functools.partial(_one_by_one, steps) if found else None


def _one_by_one(steps: list[Callable[[Any], Any]], input: Any) -> Any:
    for step in steps:
        input = step(input)
    return input


@dataclass(frozen=True, eq=False)
class _Run:
    modules: list[Any]
    links: list[tuple[str, bool]]


def _runs(
    sequential: nn.Sequential, prefix: str, trained: Mapping[str, TrainedRows]
) -> Iterator[_Run]:
    """Runs of Linear children, each with or without a ReLU; any other child is a run of its own."""
    run = _Run([], [])
    children = list(sequential.named_children())
    if len(children) != len(sequential):  # a module is registered in it twice
        children = []
        yield _Run(list(sequential), [])
    for name, module in children:
        full = dotted(prefix, name)
        chainable = not has_hooks(module)
        if chainable and type(module) is nn.Linear and full in trained and trained[full].rows:
            run.modules.append(module)
            run.links.append((full, False))
        elif chainable and type(module) is nn.ReLU and run.links and not run.links[-1][1]:
            run.modules.append(module)
            run.links[-1] = (run.links[-1][0], True)
        else:
            yield run
            yield _Run([module], [])
            run = _Run([], [])
    yield run


def has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
