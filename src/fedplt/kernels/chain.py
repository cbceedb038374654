"""Chains of Linear and ReLU modules: one autograd function, or none at all.

With layers of a few hundred neurons, much of a step's time is Python and autograd overhead per
module. So consecutive Linear and ReLU children of an ``nn.Sequential`` are one autograd function.
If they are the whole model, a step of plain SGD needs no autograd. In both cases the same kernels
run in the same order, so results are bit-identical.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedplt.kernels import linear as kernel
from fedplt.kernels.block_forward import (
    has_own_forward,
    is_original,
    is_shadowed,
    is_standard_chain,
)
from fedplt.kernels.frozen_activations import is_frozen
from fedplt.kernels.matrix_products import linear_relu
from fedplt.kernels.trained_rows import TrainedRows, differentiable_gradients
from fedplt.planning import Rows
from fedplt.torch_internals import (
    DisableTorchFunction,
    cross_entropy_and_gradient,
    direct_apply,
    has_global_hooks,
    has_hooks,
    has_other_modes,
    hidden_backward,
    is_batched,
    kernel_accepts,
    linear,
)

# The functions below do as little work as possible between the kernels.

_relu_backward = torch.ops.aten.threshold_backward


class Link(NamedTuple):
    """A Linear with trained rows, and whether a ReLU follows it."""

    trained: TrainedRows
    relu: bool


def _forward(links: list[Link], x: Tensor) -> list[Tensor]:
    """The input of every link, and the output of the last."""
    values = [x]
    for trained, relu in links:
        tensors = trained.tensors
        x = linear_relu(x, tensors["weight"], tensors.get("bias"), relu)
        values.append(x)
    return values


def _backward(
    links: list[Link],
    columns: list[Rows | None],
    values: Any,
    grad: Tensor,
    needs_input: bool,
    rate: float | None = None,
) -> list[Tensor | None]:
    """The gradients of the input and of all leaves; None for leaves with a fused step.

    ``values``: the result of :func:`_forward`, the last one only if a ReLU computed it; ``rate``:
    the learning rate of fused steps, if they are known to be possible.
    """
    gradients: list[Tensor | None] = []
    grad_x, in_place = None, False  # only tensors computed here may be changed in place
    for index in range(len(links) - 1, -1, -1):
        trained, relu = links[index]
        weight, needed = trained.tensors["weight"], trained.needed(columns[index])
        if relu:
            grad = _relu_gradient(grad, values[index + 1], in_place)
        own, below = grad, []
        if index == 1 and needed is not None:  # link 0 uses these columns and no input gradient
            for start, stop in needed:
                part = grad @ weight[:, start:stop]
                if links[0].relu:
                    part = _relu_gradient(part, values[1][:, start:stop], not is_batched(part))
                below.append(part.T)
        elif index or needs_input:
            grad = grad_x = kernel.input_gradient(grad, weight, needed)
            in_place = not is_batched(grad)
        gradients = [*kernel.move_rows(trained, own, values[index], rate), *gradients]
        if below:
            lowest = kernel.move_parts(links[0].trained, below, values[0], rate)
            return [None, *lowest, *gradients]
    return [grad_x if needs_input else None, *gradients]


def _relu_gradient(grad: Tensor, y: Tensor, in_place: bool) -> Tensor:
    if in_place:
        _relu_backward.grad_input(grad, y, 0, grad_input=grad)
        return grad
    result: Tensor = _relu_backward(grad, y, 0)
    return result


def _columns(links: list[Link], x: Tensor) -> list[Rows | None]:
    """Note a use of every link; return which columns of their inputs need a gradient."""
    columns: list[Rows | None] = []
    previous = None
    for trained, _ in links:
        columns.append(trained.used(x, previous=previous))
        previous = trained
    return columns


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, links: list[Link], columns: list[Rows | None], *leaves: Tensor
    ) -> Tensor:
        ctx.links, ctx.columns = links, columns
        ctx.versions = [link.trained.version for link in links]
        values = _forward(links, x)
        ctx.save_for_backward(*(values if links[-1].relu else values[:-1]))
        return values[-1]

    @staticmethod
    @hidden_backward
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        links, needs_input = ctx.links, ctx.needs_input_grad[0]
        first = 0 if needs_input else 1  # without an input gradient, the first weight is not read
        for link, version in zip(links[first:], ctx.versions[first:], strict=True):
            link.trained.check_version(version)
        if torch.is_grad_enabled():
            compute = functools.partial(_chain, links)
            trained = [link.trained for link in links]
            gradients = differentiable_gradients(compute, trained, saved[0], grad)
        else:
            gradients = _backward(links, ctx.columns, saved, grad, needs_input)
        return gradients[0], None, None, *gradients[1:]


_apply_chain = direct_apply(_Chain)


def _chain(links: list[Link], x: Tensor, *tensors: dict[str, Tensor]) -> Tensor:
    for link, own in zip(links, tensors, strict=True):
        x = linear(x, own["weight"], own.get("bias"))
        x = x.relu() if link.relu else x
    return x


def _run_chain(links: list[Link], x: Tensor) -> Tensor:
    columns = _columns(links, x)
    leaves = [leaf for link in links for leaf in link.trained.all_leaves()]
    result: Tensor = _apply_chain(x, links, columns, *leaves)
    return result


TrainedRowsOf = Callable[[Tensor, Tensor | None], TrainedRows | None]
"""Finds the trained rows of a weight and its bias; None if they are not planned."""


class Chained:
    """The forward of an ``nn.Sequential``: runs of Linear and ReLU are one autograd function.

    Every call checks the children. If there are hooks, replaced weights, custom forwards or patched
    classes, it calls them one by one.
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
            # Safe to hide from the function mode: parameters are used by kernels only.
            if type(child) is nn.Linear:
                with DisableTorchFunction():
                    links, length = self._links(children, index, input)
                    if len(links) > 1:
                        input = _run_chain(links, input)
                    else:
                        length = 0
            elif (
                _is_flatten(child, input)
                and not is_frozen(input)
                and not (has_global_hooks() or has_other_modes())
            ):
                with DisableTorchFunction():
                    input = child(input)
                length = 1
            if not length:
                input = child(input)
                length = 1
            index += length
        return input

    def steps(self, input: Any, rate: float) -> FusedSteps | None:
        """Fused steps of this chain without autograd, for batches like this input.

        None if the whole sequence is not one chain, or needs autograd.
        """
        sequential = self.sequential
        children = list(sequential._modules.values())
        if not (children and is_standard_chain(sequential)):
            return None
        with DisableTorchFunction():
            flatten = children.pop(0) if _is_flatten(children[0], input) else None
            if flatten is not None:
                input = flatten(input)
            links, length = self._links(children, 0, input)
            if not links or length < len(children) or not _may_skip_autograd(sequential, input):
                return None
            columns = _columns(links, input)
            if any(trained.rows and trained.fused_rate() is None for trained, _ in links):
                return None
        return FusedSteps(links, columns, rate, flatten)

    def _links(self, children: list[Any], index: int, input: Any) -> tuple[list[Link], int]:
        """The run of Linear and ReLU children that starts at ``index``, and its length."""
        links: list[Link] = []
        length = 0
        # A parameter as the input (a computed weight) is a use that the block must note.
        if isinstance(input, nn.Parameter) or not kernel_accepts(input) or input.ndim != 2:
            return links, length
        if has_global_hooks() or has_other_modes():
            return links, length
        for child in children[index:]:
            kind = type(child)
            if (kind is not nn.Linear and kind is not nn.ReLU) or _is_observed(child):
                break
            if kind is nn.Linear:
                parameters = child._parameters
                if is_shadowed(child) or not ("weight" in parameters and "bias" in parameters):
                    break  # one of them is a buffer, or computed
                trained = self.rows_of(parameters["weight"], parameters["bias"])
                if trained is None:
                    break
                links.append(Link(trained, False))
            elif links and not links[-1].relu:
                links[-1] = Link(links[-1].trained, True)
            else:
                break
            length += 1
        return links, length


@dataclass(frozen=True)
class FusedSteps:
    """Steps of SGD with cross entropy: forward and backward passes without autograd.

    :meth:`Chained.steps` checks once what a call of :class:`Chained` checks every time: between the
    steps of built-in local training nothing can register hooks or replace modules.
    """

    links: list[Link]
    columns: list[Rows | None]
    rate: float
    flatten: nn.Module | None

    def __call__(self, input: Any, targets: Any) -> Tensor | None:
        """Take a step and return the loss; return None without a step if autograd is needed."""
        with DisableTorchFunction(), torch.no_grad():  # function modes see attribute reads
            if type(targets) is not Tensor or targets.ndim != 1:
                return None
            if targets.dtype is not torch.int64 or not kernel_accepts(input):
                return None
            if input.requires_grad:
                return None
            if self.flatten is not None:
                input = self.flatten.forward(input)
            if input.ndim != 2:
                return None
            values = _forward(self.links, input)
            loss, grad = cross_entropy_and_gradient(values[-1], targets)
            _backward(self.links, self.columns, values, grad, False, self.rate)
        return loss


def _is_observed(module: nn.Module) -> bool:
    """Whether hooks see the module's inputs and outputs, or it has a custom forward."""
    return has_own_forward(module) or has_hooks(module)


def _is_flatten(module: Any, input: Any) -> bool:
    return type(module) is nn.Flatten and type(input) is Tensor and not _is_observed(module)


def _may_skip_autograd(sequential: nn.Sequential, input: Tensor) -> bool:
    """Whether a step without autograd has the same visible effects as one with it."""
    return (
        torch.is_grad_enabled()
        and not input.requires_grad
        and type(sequential) is nn.Sequential
        and not _is_observed(sequential)
        and not torch.is_anomaly_enabled()
        and is_original(F.cross_entropy)
    )
