"""The trained rows of parameters, and what a backward pass may do with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from fedplt.errors import CutError
from fedplt.kernels.plain import applied, has_standard_operations, is_transforming, unwatched
from fedplt.planning import Rows


@dataclass(eq=False)
class Slices:
    """The trained rows of one parameter, as views with the sliced axis first."""

    name: str
    parameter: Tensor
    axis: int
    rows: Rows
    views: list[Tensor]
    leaves: list[nn.Parameter]
    """The same as parameters, for an optimizer."""
    uses: int = 0
    """Operations that used the parameter since the last step."""
    is_recorded: bool = False
    """A kernel used it in a pass whose gradient is still to come."""
    is_off: bool = False
    """Its gradient is switched off inside the block (``requires_grad_(False)``)."""
    has_hooked_leaves: bool = False
    """Hooks look at gradients of its leaves, or some of them are switched off."""
    is_lowest: bool = False
    """As the weight of its last use: the input needed no gradient, so nothing below is trained."""

    @property
    def is_watched(self) -> bool:
        """Whether hooks look at its gradient, or it has none: autograd's own way is taken then."""
        hooks = self.parameter._post_accumulate_grad_hooks  # ours is one of them
        return self.is_off or bool(self.parameter._backward_hooks) or len(hooks or ()) > 1

    @property
    def whole(self) -> Tensor:
        return axis_first(self.parameter.detach(), self.axis)

    def carrier(self) -> Tensor:
        """The parameter as operations without a kernel take it.

        With hooks on leaves it is an alias: autograd itself adds up a leaf's gradients from all
        operations, with kernels and without, and a hook sees the sum, once.
        """
        if not (self.has_hooked_leaves and torch.is_grad_enabled()) or self.is_watched:
            return self.parameter
        if is_transforming() or not has_standard_operations(self.parameter):
            return self.parameter
        self.is_recorded = True
        result: Tensor = _carry(self, *self.leaves)
        return result

    def scatter_gradient(self, parameter: Tensor) -> None:
        """Move the parameter's whole gradient to its leaves, each the part of its rows.

        Autograd computes a whole gradient for operations that :mod:`fedplt.kernels` has no kernel
        for, such as a norm of the weights in the loss.
        """
        if not self.has_hooked_leaves:
            self.take_gradient(parameter)
            return
        if self.is_recorded:
            raise CutError(
                f"hooks on slices of {self.name} would be called twice in this backward pass. "
                "Either they were registered after the forward pass, or the model uses it where "
                "train_only cannot see it (in its own autograd function, another thread or "
                "TorchScript) and in its own operations, too. Register them before the forward "
                "pass, or use it in one of these ways."
            )
        with torch._C.DisableTorchFunction():
            found = [pair for pair in self._own_parts(parameter) if pair[0].requires_grad]
        for leaf, part in found:  # the hooks' operations are seen, as the model's are
            _engine_run_backward(
                (leaf,), (part,), False, False, (), allow_unreachable=True, accumulate_grad=True
            )

    @unwatched
    def take_gradient(self, parameter: Tensor) -> None:
        """The same, without hooks."""
        for leaf, part in self._own_parts(parameter):
            leaf.grad = part if leaf.grad is None else leaf.grad + part

    def _own_parts(self, parameter: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:  # autograd calls hooks without one, too
            return []
        return list(zip(self.leaves, self.parts_of(gradient), strict=True))

    def parts_of(self, gradient: Tensor) -> list[Tensor]:
        """Of the parameter's gradient, for every leaf."""
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        moved, parts = axis_first(gradient, self.axis), []
        for leaf, (start, stop) in zip(self.leaves, self.rows, strict=True):
            part = moved if leaf.shape == moved.shape else moved[start:stop]
            if part is not gradient or part.stride() != leaf.stride():
                # A copy frees the whole gradient. It gets the leaf's strides, because fused
                # optimizers do not look at strides.
                part = torch.empty_like(leaf).copy_(part)
            parts.append(part)
        return parts

    @unwatched
    def gather_gradient(self) -> Tensor | None:
        """The parameter's gradient in its own shape, zero where nothing is trained.

        From then on the leaves' gradients are views of it: what is done to it is done to them.
        """
        if all(leaf.grad is None for leaf in self.leaves):
            return None
        whole = torch.zeros_like(self.whole, memory_format=torch.contiguous_format)
        for leaf, (start, stop) in zip(self.leaves, self.rows, strict=True):
            part = whole if leaf.shape == whole.shape else whole[start:stop]
            if leaf.grad is not None:
                part.copy_(leaf.grad)
            leaf.grad = part
        return whole.movedim(0, self.axis) if self.axis else whole

    @unwatched
    def forget_gradient(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None


class _Carrier(torch.autograd.Function):
    """A parameter whose gradient goes to the leaves of its slices."""

    @staticmethod
    def forward(ctx: Any, slices: Slices, *leaves: Tensor) -> Tensor:
        ctx.slices = slices
        return slices.parameter.detach()

    @staticmethod
    @unwatched
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.slices.parts_of(gradient)


_carry = applied(_Carrier)


@dataclass(eq=False)
class Pass:
    """What the passes through a model may do at the moment."""

    rate: float | None = None
    """Of plain SGD that is fused into the backward pass."""
    is_step: bool = False
    """A backward pass runs that the training loop started for its step: it may be fused."""
    depth: int = 0
    """Backward passes that run in one another: reentrant checkpoints start their own."""
    has_ended: bool = False
    """The block is over."""
    may_leave_out: bool = True
    """Nobody looks at gradients of activations: columns that no trained row needs are left out."""
    is_certain: Callable[[TrainedRows, Tensor], bool] = lambda trained, x: False
    """Whether this input of a layer comes from its feeder with every channel in its place."""


@dataclass(eq=False)
class TrainedRows:
    """The trained rows of a weight and of the bias that it is used with.

    No rows: an untrained layer above a trained one, which saves columns of its input's gradient.
    """

    rows: Rows
    tensors: dict[str, Tensor]
    """Weight and bias without their gradients, outputs first."""
    views: dict[str, list[Tensor]]
    """The trained rows of each."""
    leaves: dict[str, list[nn.Parameter]]
    """The same as parameters, for an optimizer."""
    slices: tuple[Slices, ...]
    """Of the weight, and of the bias where it is trained."""
    state: Pass
    feeder: TrainedRows | None = None
    """The layer whose channels are this one's inputs, if nothing in between mixes channels."""
    columns_per_channel: int = 1

    def used(self, input: Tensor, *, previous: TrainedRows | None = None) -> Rows | None:
        """Note a use; return the columns of the input that need a gradient (None: all of them).

        Where the feeder is the lowest trained layer, only its trained rows use the gradient.
        ``previous``: the layer that computed the input in the same kernel; ``input`` is its, then.
        """
        is_recorded = torch.is_grad_enabled()
        for slices in self.slices:
            slices.uses += 1
            slices.is_recorded |= is_recorded
        self.slices[0].is_lowest = previous is None and not input.requires_grad
        feeder, each = self.feeder, self.columns_per_channel
        if feeder is None or feeder.is_whole or (self.rows and not self.is_used_once):
            return None
        # Used once in this pass, maybe with another bias: that use says whether it is the lowest.
        if not (feeder.is_used_once and feeder.slices[0].is_lowest):
            return None
        if not (feeder is previous if previous else self.state.is_certain(self, input)):
            return None
        return tuple((start * each, stop * each) for start, stop in feeder.rows)

    @property
    def is_used_once(self) -> bool:
        for slices in self.slices:  # noqa: SIM110 (asked several times a step: no generator)
            if slices.uses != 1:
                return False
        return True

    @property
    def is_watched(self) -> bool:
        for slices in self.slices:  # noqa: SIM110
            if slices.is_watched:
                return True
        return False

    def is_usable(self, axis: int) -> bool:
        """Whether the kernel may run, and saves something; ``axis``: that of the weight's rows."""
        saves = bool(self.rows) or self.feeder is not None
        return saves and self.slices[0].axis == axis and not self.is_watched

    @functools.cached_property
    def is_whole(self) -> bool:
        """Every row is trained."""
        return self.rows == ((0, len(self.tensors["weight"])),)

    def fused_rate(self) -> float | None:
        """The rate of a fused step, or None where the leaves get gradients instead."""
        fuses = self.state.is_step and self.state.depth == 1 and self.is_used_once
        for slices in self.slices:
            fuses = fuses and not slices.has_hooked_leaves
        return self.state.rate if fuses else None

    @property
    def version(self) -> int:
        """Of the weight: counts the changes in place."""
        return self.slices[0].parameter._version

    def check_version(self, version: int) -> None:
        """Refuse what torch refuses: the numbers that the forward pass used are gone."""
        if self.version != version:
            raise CutError(
                f"{self.slices[0].name} was changed in place between the forward pass that used it "
                "and its backward pass, so the gradients would be wrong. Change it after the "
                "backward pass, or clone it before."
            )

    def needed(self, columns: Rows | None) -> Rows | None:
        """The columns to compute in this backward pass."""
        return columns if self.state.may_leave_out else None

    def all_leaves(self) -> list[nn.Parameter]:
        """Of the weight, then of the bias."""
        return self.leaves["weight"] + self.leaves.get("bias", [])


@dataclass(eq=False)
class Statistics:
    """A normalization layer's running statistics, and the channels whose may change."""

    mean: Tensor
    var: Tensor
    rows: Rows = field(default=())


def axis_first(tensor: Tensor, axis: int) -> Tensor:
    return tensor.movedim(axis, 0) if axis else tensor
