"""The trained rows of parameters, and how their gradients reach them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedplt.errors import CutError
from fedplt.planning import Rows
from fedplt.torch_internals import (
    DisableTorchFunction,
    direct_apply,
    has_standard_operations,
    hidden_operations,
    is_transforming,
    run_backward,
)


@dataclass(eq=False)
class Slices:
    """The trained rows of one parameter, as views with the sliced axis first."""

    name: str
    parameter: Tensor
    axis: int
    rows: Rows
    views: list[Tensor]
    leaves: list[nn.Parameter]
    """The views as parameters, for an optimizer."""
    uses: int = 0
    """How often operations used the parameter since the last step."""
    is_recorded: bool = False
    """Whether a kernel used it in a forward pass whose backward pass has not run yet."""
    is_off: bool = False
    """Whether its gradient is switched off inside the block (``requires_grad_(False)``)."""
    has_hooked_leaves: bool = False
    """Whether leaves have gradient hooks, or ``requires_grad`` False."""
    is_lowest: bool = False
    """Whether the input of its last use needed no gradient, so nothing below is trained."""

    @property
    def is_watched(self) -> bool:
        """Whether its gradient has hooks, or is switched off: then no kernel computes it."""
        hooks = self.parameter._post_accumulate_grad_hooks  # one of them is ours
        return self.is_off or bool(self.parameter._backward_hooks) or len(hooks or ()) > 1

    @property
    def whole(self) -> Tensor:
        return axis_first(self.parameter.detach(), self.axis)

    def carrier(self) -> Tensor:
        """The tensor for operations without a kernel: the parameter, or an alias of its leaves.

        If leaves have hooks it is an alias: autograd then sums a leaf's gradients from operations
        with and without kernels, and calls a hook once, with the sum.
        """
        if not (self.has_hooked_leaves and torch.is_grad_enabled()) or self.is_watched:
            return self.parameter
        if is_transforming() or not has_standard_operations(self.parameter):
            return self.parameter
        self.is_recorded = True
        result: Tensor = _carry(self, *self.leaves)
        return result

    def scatter_gradient(self, parameter: Tensor) -> None:
        """Move the parameter's gradient to its leaves: each gets the part of its rows.

        Autograd computes it for operations without a kernel, such as a weight norm in the loss.
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
        with DisableTorchFunction():
            found = [pair for pair in self._own_parts(parameter) if pair[0].requires_grad]
        for leaf, part in found:  # function modes see the hooks' operations
            run_backward(
                (leaf,), (part,), False, False, (), allow_unreachable=True, accumulate_grad=True
            )

    @hidden_operations
    def take_gradient(self, parameter: Tensor) -> None:
        """:meth:`scatter_gradient` without hooks."""
        for leaf, part in self._own_parts(parameter):
            leaf.grad = part if leaf.grad is None else leaf.grad + part

    def _own_parts(self, parameter: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:  # autograd calls hooks without one, too
            return []
        return list(zip(self.leaves, self.parts_of(gradient), strict=True))

    def parts_of(self, gradient: Tensor) -> list[Tensor]:
        """The part of the parameter's gradient for every leaf."""
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        moved, parts = axis_first(gradient, self.axis), []
        for leaf, (start, stop) in zip(self.leaves, self.rows, strict=True):
            part = moved if leaf.shape == moved.shape else moved[start:stop]
            if part is not gradient or part.stride() != leaf.stride():
                # A copy lets the whole gradient be freed. It gets the leaf's strides, because
                # fused optimizers ignore strides.
                part = torch.empty_like(leaf).copy_(part)
            parts.append(part)
        return parts

    @hidden_operations
    def gather_gradient(self) -> Tensor | None:
        """The parameter's gradient in its own shape, zero where nothing is trained.

        From then on the leaves' gradients are views of it: a change of it changes them.
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

    @hidden_operations
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
    @hidden_operations
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.slices.parts_of(gradient)


_carry = direct_apply(_Carrier)


@dataclass(eq=False)
class Pass:
    """State of the current passes through a model: what kernels may do."""

    rate: float | None = None
    """Learning rate of SGD that is fused into the backward pass."""
    is_step: bool = False
    """Whether the backward pass of a training step runs: SGD may be fused into it."""
    depth: int = 0
    """Number of nested backward passes: a reentrant checkpoint starts one inside another."""
    has_ended: bool = False
    """Whether the block has ended."""
    may_skip_columns: bool = True
    """Whether columns that no trained row needs may be skipped: gradients are not read."""
    is_unpermuted: Callable[[TrainedRows, Tensor], bool] = lambda trained, x: False
    """Checks that the channels of a layer's feeder reach the layer's input unpermuted."""


@dataclass(eq=False)
class TrainedRows:
    """The trained rows of a weight and of the bias that it is used with.

    Without rows, it is an untrained layer that skips columns of its input gradient.
    """

    rows: Rows
    tensors: dict[str, Tensor]
    """Weight and bias without their gradients, outputs first."""
    views: dict[str, list[Tensor]]
    """The trained rows of weight and bias."""
    leaves: dict[str, list[nn.Parameter]]
    """The views as parameters, for an optimizer."""
    slices: tuple[Slices, ...]
    """Slices of the weight, and of the bias if it is trained."""
    state: Pass
    feeder: TrainedRows | None = None
    """The layer whose channels are this layer's inputs, if no operation between mixes them."""
    columns_per_channel: int = 1

    def used(self, input: Tensor, *, previous: TrainedRows | None = None) -> Rows | None:
        """Note a use; return the columns of the input that need a gradient (None: all of them).

        If the feeder is the lowest trained layer, only its trained rows use the gradient.
        ``previous``: the layer below in the same kernel; ``input`` is then that layer's input.
        """
        is_recorded = torch.is_grad_enabled()
        for slices in self.slices:
            slices.uses += 1
            slices.is_recorded |= is_recorded
        self.slices[0].is_lowest = previous is None and not input.requires_grad
        feeder, each = self.feeder, self.columns_per_channel
        if feeder is None or feeder.is_whole or (self.rows and not self.is_used_once):
            return None
        # is_lowest is about the last use, so it is reliable only if there was one use.
        if not (feeder.is_used_once and feeder.slices[0].is_lowest):
            return None
        if not (feeder is previous if previous else self.state.is_unpermuted(self, input)):
            return None
        return tuple((start * each, stop * each) for start, stop in feeder.rows)

    @property
    def is_used_once(self) -> bool:
        for slices in self.slices:  # noqa: SIM110 (called often: no generator)
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
        """Whether the kernel may run and saves work; ``axis``: the axis of the weight's rows."""
        saves = bool(self.rows) or self.feeder is not None
        return saves and self.slices[0].axis == axis and not self.is_watched

    @functools.cached_property
    def is_whole(self) -> bool:
        """Whether every row is trained."""
        return self.rows == ((0, len(self.tensors["weight"])),)

    def fused_rate(self) -> float | None:
        """The rate of a fused step, or None if the leaves get gradients instead."""
        fuses = self.state.is_step and self.state.depth == 1 and self.is_used_once
        for slices in self.slices:
            fuses = fuses and not slices.has_hooked_leaves
        return self.state.rate if fuses else None

    @property
    def version(self) -> int:
        """The weight's version counter: the number of changes in place."""
        return self.slices[0].parameter._version

    def check_version(self, version: int) -> None:
        """Refuse, like torch, if values that the forward pass used were overwritten."""
        if self.version != version:
            raise CutError(
                f"{self.slices[0].name} was changed in place between the forward pass that used it "
                "and its backward pass, so the gradients would be wrong. Change it after the "
                "backward pass, or clone it before."
            )

    def needed(self, columns: Rows | None) -> Rows | None:
        """The columns to compute in this backward pass."""
        return columns if self.state.may_skip_columns else None

    def all_leaves(self) -> list[nn.Parameter]:
        """The leaves of the weight, then of the bias."""
        return self.leaves["weight"] + self.leaves.get("bias", [])


@dataclass(eq=False)
class Statistics:
    """A normalization layer's running statistics, and the channels that may change."""

    mean: Tensor
    var: Tensor
    rows: Rows = field(default=())


class Planned(Protocol):
    """The planned parameters and statistics of a model."""

    def rows_of(self, weight: Any, bias: Any, axis: int = 0) -> TrainedRows | None:
        """Rows of a weight with outputs on this axis; None if a kernel would save nothing."""

    def statistics_of(self, mean: Any, var: Any) -> Statistics | None: ...

    @property
    def has_hooks(self) -> bool:
        """Whether gradients of slices have hooks."""

    def carrier_of(self, tensor: Any) -> Any:
        """The tensor that torch's own operations get instead of a planned parameter."""

    def note_write(self) -> None:
        """Call before an operation writes to a parameter."""


def axis_first(tensor: Tensor, axis: int) -> Tensor:
    return tensor.movedim(axis, 0) if axis else tensor


def differentiable_gradients(
    compute: Callable[..., Tensor], trained: Sequence[TrainedRows], x: Tensor, grad: Tensor
) -> list[Tensor | None]:
    """Gradients that can be differentiated again (``create_graph``), as for gradient penalties.

    Torch's own operations compute them from the parameters. Returns the gradient of the input (None
    if it needs none) and of all leaves; the forward pass is ``compute(x, *tensors)``.
    """
    all_slices = [slices for rows in trained for slices in rows.slices if slices.rows]
    for slices in all_slices:
        slices.uses += 2  # torch uses the parameter itself: no fused step may change it
    # An alias for every use: otherwise a weight that is used twice gets gradients twice.
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


def _tensors(rows: TrainedRows, aliases: Iterator[Tensor]) -> dict[str, Tensor]:
    own = {
        key: axis_first(next(aliases), slices.axis)
        for key, slices in zip(rows.leaves, rows.slices, strict=True)
        if slices.rows
    }
    return rows.tensors | own
