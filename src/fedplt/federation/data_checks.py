"""Data that a task cannot be learned from is refused before training, in words about the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

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
)
from fedplt.data import Samples, TensorSamples, TrainingData, first_examples
from fedplt.errors import DataError

BLOCK = 10_000
"""Examples that are looked at together."""
CLASS_LOSSES = (TASKS["classification"].loss, TASKS["next-token"].loss)
CLASS_METRICS = tuple(
    METRICS[name].function for name in ("accuracy", "perplexity", "token-accuracy")
)
FILL = "Remove such examples, or fill their gaps."


def check_finite(data: TrainingData) -> None:
    """Refuse NaN and infinite values in tensors; items of a Dataset are checked when fetched."""
    for part, samples in _parts(data):
        if not isinstance(samples, TensorSamples):
            first_examples(samples)
            continue
        inputs = samples.inputs
        named = dict(inputs) if isinstance(inputs, Mapping) else {"inputs": inputs}
        for name, tensor in {**named, "targets": samples.targets}.items():
            if tensor.is_floating_point():
                _refuse_not_finite(f"{part} data: the {name}", tensor)


def _refuse_not_finite(what: str, tensor: Tensor) -> None:
    bad: list[int] = []
    for start in range(0, len(tensor), BLOCK):
        finite = torch.isfinite(tensor[start : start + BLOCK]).reshape(-1)
        if bool(finite.all()):
            continue
        rows = finite.view(min(BLOCK, len(tensor) - start), -1).all(1)
        bad += (start + (~rows).nonzero()[:, 0]).tolist()
    if bad:
        raise DataError(
            f"{what} of {len(bad)} of {len(tensor)} examples have NaN or infinite values, the "
            f"first is example {bad[0]}. {FILL}"
        )


def check_targets(data: TrainingData, outputs: Any, task: Task) -> None:
    """Refuse targets that the task's loss or metric takes for something that they are not."""
    classes = task.loss in CLASS_LOSSES or task.metric.function in CLASS_METRICS
    several = task.loss is TASKS["multi-label"].loss
    for part, samples in _parts(data):
        for start, targets in _targets(samples):
            if classes:
                _check_classes(f"{part} data", start, targets, outputs, task)
            elif several and not bool(((targets >= 0) & (targets <= 1)).all()):
                raise DataError(
                    f"{part} data: targets go from {float(targets.min()):g} to "
                    f"{float(targets.max()):g}; {task.name} needs 0 or 1 for each label."
                )


def check_shift(outputs: Any, targets: Any, task: Task) -> None:
    """Refuse accuracy for a model that predicts the token that follows, not each token's label."""
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


def _check_classes(part: str, start: int, targets: Tensor, outputs: Any, task: Task) -> None:
    logits = logits_of(outputs)
    wrapped = logits is not outputs and logits.ndim > 2
    if not is_labels(targets):
        _check_probabilities(part, targets, logits, task)
        return
    if logits.ndim == 1:
        return
    number = logits.shape[-1] if wrapped else logits.shape[1]
    counted = targets[targets != IGNORED]
    if not len(counted):
        return
    low, high = int(counted.min()), int(counted.max())
    if low >= 0 and high < number:
        return
    wrong = low if low < 0 else high
    first = start + int((targets == wrong).nonzero()[0, 0])
    from_one = high == number and low > 0
    do = (
        f"Labels count from 0; {IGNORED} marks those to leave out."
        if low < 0 or from_one
        else f"It needs at least {high + 1} outputs (model.options)."
    )
    raise DataError(
        f"{part}: label {wrong} (example {first}), but the model has {number} outputs, for labels "
        f"0 to {number - 1}. {do}"
    )


def _check_probabilities(part: str, targets: Tensor, logits: Tensor, task: Task) -> None:
    """Cross entropy takes floats for the probabilities of the classes."""
    alike = targets.ndim > 1 and targets.shape[1:] == logits.shape[1:] and targets.shape[1] > 1
    if alike and bool((targets >= 0).all()):
        sums = targets.sum(1)
        if bool(torch.isclose(sums, torch.ones_like(sums), atol=1e-3).all()):
            return
    who = f"the loss of {task.name!r}" if task.loss in CLASS_LOSSES else task.metric.name
    raise DataError(
        f"{part}: targets are {_many(targets)} ({targets.dtype}); {who} needs a label per "
        "example: a whole number. For numbers to predict, set the task to 'regression'; for "
        "several labels per example, to 'multi-label' (task= or [task] name); or convert labels "
        "with .long()."
    )


def _many(targets: Tensor) -> str:
    shape = tuple(targets.shape[1:])
    kind = "floats" if targets.is_floating_point() else "yes or no"
    return f"{kind} of shape {shape} per example" if shape else f"{kind}, one per example"


def _targets(samples: Samples) -> Iterator[tuple[int, Tensor]]:
    """Targets in blocks; of a Dataset, those of the first examples."""
    if not isinstance(samples, TensorSamples):
        targets = first_examples(samples)[1]
        if isinstance(targets, Tensor):
            yield 0, targets
        return
    for start in range(0, len(samples), BLOCK):
        yield start, samples.targets[start : start + BLOCK]


def _parts(data: TrainingData) -> Iterator[tuple[str, Samples]]:
    yield "training", data.train
    yield "validation", data.validation
    if data.test is not None and data.test is not data.validation:
        yield "test", data.test
