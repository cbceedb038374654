"""Data that a task cannot be learned from is refused before training, in words about the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedplt.client import (
    METRICS,
    TASKS,
    Task,
    class_scores,
    is_labels,
    logits_of,
    next_tokens,
    own_loss,
)
from fedplt.data import (
    FIRST_EXAMPLES,
    DatasetSamples,
    Samples,
    TensorSamples,
    TrainingData,
    first_examples,
    named_inputs,
)
from fedplt.errors import DataError
from fedplt.federation.target_checks import target_check

BLOCK = 10_000
"""Examples that are looked at together."""
ITEMS_AHEAD = 64
"""Items of a Dataset that are fetched before training, to see whether they are right; a fixed
number, since a Dataset may draw at random from a generator of its own."""
FILL = "Remove such examples, or fill their gaps."


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


def with_checks(data: Parts, outputs: Any, task: Task, *, ahead: bool = True) -> dict[str, Samples]:
    """Refuse targets that the task's loss or metric takes for something that they are not.

    Tensors are checked here. Items of a Dataset may be costly: they are checked when they are
    fetched, by the Datasets that are returned; the first ones, here (``ahead``).
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


def _targets(samples: Samples) -> Iterator[tuple[int, Tensor]]:
    """Targets in blocks; of the user's own kind of samples, those of the first examples."""
    if not isinstance(samples, TensorSamples):
        targets = first_examples(samples)[1]
        if isinstance(targets, Tensor):
            yield 0, targets
        return
    for start in range(0, len(samples), BLOCK):
        yield start, samples.targets[start : start + BLOCK]
