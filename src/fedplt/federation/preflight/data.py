"""Refuse data that a task cannot be learned from, before training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedplt.client import (
    IGNORED,
    METRICS,
    TASKS,
    Task,
    class_scores,
    is_labels,
    logits_of,
    next_tokens,
    own_loss,
    vocabulary_axis,
)
from fedplt.data import (
    FIRST_EXAMPLES,
    CheckTargets,
    DatasetSamples,
    Samples,
    TensorSamples,
    TrainingData,
    first_examples,
    named_inputs,
)
from fedplt.errors import DataError
from fedplt.models import call_model, model_mode

BLOCK = 10_000
"""Number of examples checked at once."""
ITEMS_AHEAD = 64
"""Number of items of a Dataset that are fetched and checked before training. It is fixed, since a
Dataset may draw from its own random generator."""
FILL = "Remove such examples, or fill their gaps."
CLASS_LOSSES = (TASKS["classification"].loss, TASKS["next-token"].loss)
CLASS_METRICS = tuple(
    METRICS[name].function for name in ("accuracy", "perplexity", "token-accuracy")
)

Parts = Mapping[str, Samples]
"""Examples by what messages call them: ``training data``, ..."""


def parts_of(data: TrainingData) -> Parts:
    """All of its parts, each once."""
    parts = {"training data": data.train, "validation data": data.validation}
    if data.test is not None and data.test is not data.validation:
        parts["test data"] = data.test
    return parts


def check_finite(data: Parts) -> None:
    """Refuse NaN and infinite values in tensors; items of a Dataset are checked when fetched."""
    for part, samples in data.items():
        if not isinstance(samples, TensorSamples):
            with _naming(part):
                first_examples(samples)
            continue
        for name, tensor in (*named_inputs(samples.inputs), ("targets", samples.targets)):
            if tensor.is_floating_point():
                _refuse_not_finite(f"{part}: the {name}", tensor)


def _refuse_not_finite(what: str, tensor: Tensor) -> None:
    blocks, size = tensor.split(BLOCK), math.prod(tensor.shape[1:])
    finite = [torch.isfinite(block).reshape(len(block), size).all(1) for block in blocks]
    bad = (~torch.cat(finite)).nonzero()[:, 0].tolist()
    if bad:
        raise DataError(
            f"{what} of {len(bad)} of {len(tensor)} examples have NaN or infinite values, the "
            f"first is example {bad[0]}. {FILL}"
        )


def with_checks(data: Parts, outputs: Any, task: Task, *, ahead: bool = True) -> dict[str, Samples]:
    """Refuse targets that the task's loss or metric would misinterpret.

    Tensors are checked here. Items of a Dataset may be costly to fetch: the returned Datasets check
    each item when it is fetched. With ``ahead``, the first items are fetched here.
    """
    checked: dict[str, Samples] = {}
    for part, samples in data.items():
        check = target_check(part, outputs, task)
        if isinstance(samples, DatasetSamples):
            checked[part] = fetched = replace(samples, check=check)
            if ahead:
                _fetch_ahead(fetched, part)
            continue
        checked[part] = samples
        if check is not None:
            for start, targets in _targets(samples):
                check(targets, range(start, start + len(targets)))
    return checked


def _fetch_ahead(samples: DatasetSamples, part: str) -> None:
    """Fetch the first items: a bad one is refused at once."""
    first = torch.arange(min(len(samples), ITEMS_AHEAD))
    for indices in first.split(FIRST_EXAMPLES) if len(first) else ():
        with _naming(part), torch.random.fork_rng(devices=[]):
            samples.batch(indices)


@contextmanager
def _naming(part: str) -> Iterator[None]:
    """Errors say which part of the data they are about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{part}: {str(error).removeprefix(f'{part}: ')}") from error


def check_shift(outputs: Any, targets: Any, task: Task) -> None:
    """Refuse accuracy for a model that predicts the next token instead of each token's label."""
    if isinstance(outputs, Tensor) or task.metric.function is not METRICS["accuracy"].function:
        return
    if not is_labels(targets) or logits_of(outputs).ndim != 3:
        return
    follows, loss = task.loss is TASKS["next-token"].loss, own_loss(outputs)
    if loss is not None and not follows:
        shifted = float(F.cross_entropy(*next_tokens(outputs, targets)))
        in_place = float(F.cross_entropy(*class_scores(outputs, targets)))
        follows = abs(float(loss) - shifted) < 1e-4 < abs(float(loss) - in_place)
    if follows:
        raise DataError(
            "the model predicts the token that follows, but accuracy compares each output with its "
            "own token. Set task.name = 'next-token', whose metric is perplexity (or task.metric = "
            "'token-accuracy')."
        )


def _targets(samples: Samples) -> Iterator[tuple[int, Tensor]]:
    """Targets in blocks; of a custom kind of samples, only those of the first examples."""
    if not isinstance(samples, TensorSamples):
        targets = first_examples(samples)[1]
        if isinstance(targets, Tensor):
            yield 0, targets
        return
    for start in range(0, len(samples), BLOCK):
        yield start, samples.targets[start : start + BLOCK]


@dataclass(frozen=True)
class _LabelCheck:
    """Targets are labels that the model has outputs for, or probabilities of classes."""

    part: str
    asks: str
    """The loss or metric that needs labels."""
    shape: tuple[int, ...]
    """Shape of the model's outputs."""
    wrapped: bool
    """Whether outputs have the classes on their last axis, not on their second."""
    follows: bool
    """Whether targets are the next tokens: then either axis may have the classes."""

    def __call__(self, targets: Tensor, numbers: Sequence[int]) -> None:
        one_hot = targets.ndim > 1 and targets.shape[1:] == self.shape[1:]
        if one_hot or not is_labels(targets):
            self._probabilities(targets, numbers)
            return
        if targets.ndim == 1 and bool((targets == IGNORED).any()):
            first = numbers[int((targets == IGNORED).nonzero()[0, 0])]
            raise DataError(
                f"{self.part}: label {IGNORED} (example {first}) is ignored, but it is the "
                "example's only label. Remove such examples."
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


def _check_several(part: str, asks: str, targets: Tensor, numbers: Sequence[int]) -> None:
    """Targets are 0 or 1 for each label, or in between."""
    wrong = ((targets < 0) | (targets > 1)).nonzero()
    if len(wrong):
        raise DataError(
            f"{part}: targets go from {float(targets.min()):g} to {float(targets.max()):g} "
            f"(example {numbers[int(wrong[0, 0])]}); {asks} needs 0 or 1 for each label."
        )


def target_check(part: str, outputs: Any, task: Task) -> CheckTargets | None:
    """A function that checks the targets of a batch; None for a custom task."""
    if task.loss in CLASS_LOSSES or task.metric.function in CLASS_METRICS:
        logits = logits_of(outputs)
        asks = f"the loss of {task.name!r}" if task.loss in CLASS_LOSSES else task.metric.name
        wrapped = logits is not outputs and logits.ndim > 2
        tokens = METRICS["perplexity"].function, METRICS["token-accuracy"].function
        follows = task.loss is TASKS["next-token"].loss or task.metric.function in tokens
        return _LabelCheck(part, asks, tuple(logits.shape), wrapped, follows)
    several = task.loss is TASKS["multi-label"].loss
    return partial(_check_several, part, task.name) if several else None


def _many(targets: Tensor) -> str:
    shape = tuple(targets.shape[1:])
    kind = "floats" if targets.is_floating_point() else "booleans"
    kind = "whole numbers" if is_labels(targets) else kind
    return f"{kind} of shape {shape} per example" if shape else f"{kind}, one per example"


def refuse_integers(model: nn.Module, inputs: Any) -> None:
    """Refuse whole numbers as inputs if the model runs with the same numbers as floats."""
    if not isinstance(inputs, Tensor) or inputs.is_floating_point():
        return
    try:
        with model_mode(model, training=False), torch.no_grad():
            call_model(model, inputs.float())
    except Exception:  # then the type was not the reason
        return
    raise DataError(
        f"the inputs are whole numbers ({inputs.dtype}), but the model computes with floats. "
        "Convert them: inputs.float(), for images also / 255."
    )
