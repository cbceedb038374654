"""What is trained of one parameter, and of one module with the passes that share it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Rows = tuple[tuple[int, int], ...]
"""Trained rows of a tensor along its sliced axis, as ``(start, stop)`` pairs."""


@dataclass(eq=False)
class Slices:
    """The trained rows of one parameter, as views with the sliced axis first."""

    parameter: Tensor
    axis: int
    rows: Rows
    views: list[Tensor]
    leaves: list[nn.Parameter]
    is_moved: bool = False
    """The parameter lies with its sliced axis first inside the block."""

    @property
    def whole(self) -> Tensor:
        return axis_first(self.parameter.detach(), self.axis)

    def hand_out(self, parameter: Tensor) -> None:
        """Give the leaves their part of the parameter's whole gradient.

        It is computed where no forward of :mod:`fedplt.kernels` knows better: for modules of other
        kinds, and wherever a model uses a parameter without calling its module.
        """
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        moved = axis_first(gradient, self.axis)
        for leaf, (start, stop) in zip(self.leaves, self.rows, strict=True):
            part = moved if leaf.shape == moved.shape else moved[start:stop]
            if part is not gradient or part.stride() != leaf.stride():
                # A copy: the whole gradient can be let go, and fused optimisers do not look at
                # strides, so it must lie as its leaf does.
                part = torch.empty_like(leaf).copy_(part)
            leaf.grad = part if leaf.grad is None else leaf.grad + part


@dataclass(eq=False)
class TrainedRows:
    """What is trained of one module, and what its backward pass may leave out."""

    rows: Rows = ()
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """The module's tensors without their gradients, by name."""
    views: dict[str, list[Tensor]] = field(default_factory=dict)
    """The trained rows of each tensor."""
    leaves: dict[str, list[nn.Parameter]] = field(default_factory=dict)
    """The same as parameters, for an optimiser."""
    rate: float | None = None
    """Fused plain SGD: the backward pass itself moves the rows by this rate times the gradient."""
    feeder: TrainedRows | None = None
    """The module whose channels this one takes in, if the way between keeps channels apart."""
    columns_per_channel: int = 1
    calls: int = 0
    """Since the model's last forward pass began; a module called twice is never fused."""
    is_fusable: bool = True
    """Its tensors are its own: nothing else uses them."""
    is_lowest: bool = False
    """Nothing below it is trained: its input needs no gradient."""
    statistics: Rows = ()
    """Channels whose running statistics move: the trained ones, or all where they are local."""
    num_batches: int = 0

    def called(self, needs_gradient: bool) -> Rows | None:
        """Note a call; the columns of the input that need a gradient (None: all of them).

        Where the feeder is the lowest trained module, only its trained rows use the gradient.
        """
        self.calls += 1
        self.is_lowest = not needs_gradient
        feeder, each = self.feeder, self.columns_per_channel
        if feeder is None or not feeder.is_lowest or feeder.calls != 1 or self.calls != 1:
            return None
        if feeder.is_whole:
            return None
        return tuple((start * each, stop * each) for start, stop in feeder.rows)

    @functools.cached_property
    def is_whole(self) -> bool:
        """Every row is trained."""
        return self.rows == ((0, len(self.tensors["weight"])),)

    def fused_rate(self) -> float | None:
        """The rate of a fused step, or None where gradients are handed to the leaves."""
        return self.rate if self.calls == 1 else None

    def all_leaves(self) -> list[nn.Parameter]:
        """Of the weight, then of the bias."""
        return self.leaves["weight"] + self.leaves.get("bias", [])


def axis_first(tensor: Tensor, axis: int) -> Tensor:
    return tensor.movedim(axis, 0) if axis else tensor
