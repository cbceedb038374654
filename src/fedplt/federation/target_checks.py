"""Targets that a task takes for something that they are not, such as labels without an output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedplt.client import IGNORED, METRICS, TASKS, Task, is_labels, logits_of, vocabulary_axis
from fedplt.data import CheckTargets
from fedplt.errors import DataError

CLASS_LOSSES = (TASKS["classification"].loss, TASKS["next-token"].loss)
CLASS_METRICS = tuple(
    METRICS[name].function for name in ("accuracy", "perplexity", "token-accuracy")
)


@dataclass(frozen=True)
class _LabelCheck:
    """Targets are labels that the model has outputs for, or probabilities of classes."""

    part: str
    asks: str
    """Who needs labels."""
    shape: tuple[int, ...]
    """Of the model's outputs."""
    wrapped: bool
    """Outputs have the classes on their last axis, not on their second."""
    follows: bool
    """Targets are the tokens that follow: then either axis may have the classes."""

    def __call__(self, targets: Tensor, numbers: Sequence[int]) -> None:
        one_hot = targets.ndim > 1 and targets.shape[1:] == self.shape[1:]
        if one_hot or not is_labels(targets):
            self._probabilities(targets, numbers)
            return
        if targets.ndim == 1 and bool((targets == IGNORED).any()):
            first = numbers[int((targets == IGNORED).nonzero()[0, 0])]
            raise DataError(
                f"{self.part}: label {IGNORED} (example {first}) is to be left out, but it is the "
                "example's only one. Remove such examples."
            )
        counted = targets[targets != IGNORED]
        if len(self.shape) == 1 or not len(counted):
            return
        axis = -1 if self.wrapped else 1
        if self.follows and not self.wrapped:
            axis = vocabulary_axis(self.shape, tuple(targets.shape))
        number = self.shape[axis]
        low, high = int(counted.min()), int(counted.max())
        if low >= 0 and high < number:
            return
        wrong = low if low < 0 else high
        first = numbers[int((targets == wrong).nonzero()[0, 0])]
        left_out = f"; {IGNORED} marks those to leave out" if targets.ndim > 1 else ""
        do = (
            f"Labels count from 0{left_out}."
            if low < 0 or (high == number and low > 0)
            else f"It needs at least {high + 1} outputs (model.options)."
        )
        raise DataError(
            f"{self.part}: label {wrong} (example {first}), but the model has {number} outputs, "
            f"for labels 0 to {number - 1}. {do}"
        )

    def _probabilities(self, targets: Tensor, numbers: Sequence[int]) -> None:
        """Cross entropy takes floats for the probabilities of the classes, as one-hot labels."""
        alike = targets.ndim > 1 and targets.shape[1:] == self.shape[1:] and targets.shape[1] > 1
        if alike and bool((targets >= 0).all()):
            sums = targets.sum(1).float()
            if bool(torch.isclose(sums, torch.ones_like(sums), atol=1e-3).all()):
                return
        broken = (targets != targets.round()).nonzero()
        such = ""
        if len(broken):
            value = float(targets[tuple(broken[0])])
            such = f", such as {value:.6g} (example {numbers[int(broken[0, 0])]})"
        raise DataError(
            f"{self.part}: targets are {_many(targets)} ({targets.dtype}){such}; {self.asks} needs "
            "a label per example: a whole number. For numbers to predict, set the task to "
            "'regression'; for several labels per example, to 'multi-label' (task= or [task] "
            "name); or convert labels with .long()."
        )


@dataclass(frozen=True)
class _SeveralCheck:
    """Targets are 0 or 1 for each label, or in between."""

    part: str
    asks: str

    def __call__(self, targets: Tensor, numbers: Sequence[int]) -> None:
        wrong = ((targets < 0) | (targets > 1)).nonzero()
        if len(wrong):
            raise DataError(
                f"{self.part}: targets go from {float(targets.min()):g} to "
                f"{float(targets.max()):g} (example {numbers[int(wrong[0, 0])]}); {self.asks} "
                "needs 0 or 1 for each label."
            )


def target_check(part: str, outputs: Any, task: Task) -> CheckTargets | None:
    """Checks the targets of a batch; None where the task is the user's own."""
    if task.loss in CLASS_LOSSES or task.metric.function in CLASS_METRICS:
        logits = logits_of(outputs)
        asks = f"the loss of {task.name!r}" if task.loss in CLASS_LOSSES else task.metric.name
        wrapped = logits is not outputs and logits.ndim > 2
        tokens = METRICS["perplexity"].function, METRICS["token-accuracy"].function
        follows = task.loss is TASKS["next-token"].loss or task.metric.function in tokens
        return _LabelCheck(part, asks, tuple(logits.shape), wrapped, follows)
    return _SeveralCheck(part, task.name) if task.loss is TASKS["multi-label"].loss else None


def _many(targets: Tensor) -> str:
    shape = tuple(targets.shape[1:])
    kind = "floats" if targets.is_floating_point() else "yes or no"
    kind = "whole numbers" if is_labels(targets) else kind
    return f"{kind} of shape {shape} per example" if shape else f"{kind}, one per example"
