"""Learning tasks: a loss to train with and a metric to measure with.

==================  ==============================  =========================================
``classification``  cross entropy                   accuracy
``regression``      mean squared error              RMSE (also: ``mae``, ``r2``)
``multi-label``     binary cross entropy on logits  F1 (also: ``macro-f1``)
``next-token``      cross entropy per token         perplexity (also: ``token-accuracy``)
==================  ==============================  =========================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedplt.client.metrics import Metric, accuracy, as_metric, f1, perplexity, rmse
from fedplt.client.outputs import aligned, class_scores, next_tokens, own_loss
from fedplt.errors import ConfigError
from fedplt.torch_internals import DisableTorchFunction

Loss = Callable[[Any, Any], Tensor]
"""Computes the mean loss of a batch from the model's outputs and the targets."""


@dataclass(frozen=True)
class Task:
    """A loss and a metric. ``loss(outputs, targets)`` is the mean over a batch."""

    name: str
    loss: Loss
    metric: Metric

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise ConfigError(
                f"task {self.name!r}: the loss is a {type(self.loss).__name__}; give a function "
                "loss(outputs, targets) that returns the mean over the batch."
            )
        as_metric(self.metric)


def classification_loss(outputs: Any, targets: Any) -> Tensor:
    """Cross entropy, or the loss that the model itself computed from labels among its inputs."""
    if type(outputs) is Tensor and type(targets) is Tensor:
        with DisableTorchFunction():  # no parameter is used here
            if targets.ndim < outputs.ndim:
                return F.cross_entropy(outputs, targets)
    return _own_or(F.cross_entropy, class_scores, outputs, targets)


def _own_or(function: Loss, align: Callable[[Any, Any], Any], outputs: Any, targets: Any) -> Tensor:
    """The loss that the model computed itself, or else the function's."""
    loss = own_loss(outputs)
    return function(*align(outputs, targets)) if loss is None else loss


def regression_loss(outputs: Any, targets: Any) -> Tensor:
    """Mean squared error."""
    return _own_or(F.mse_loss, aligned, outputs, targets)


def multi_label_loss(outputs: Any, targets: Any) -> Tensor:
    """Binary cross entropy of each label; outputs are logits."""
    return _own_or(F.binary_cross_entropy_with_logits, aligned, outputs, targets)


def next_token_loss(outputs: Any, targets: Any) -> Tensor:
    """Cross entropy of the next token."""
    return _own_or(F.cross_entropy, next_tokens, outputs, targets)


MEANS: tuple[Loss, ...] = (classification_loss, regression_loss, multi_label_loss)
"""Losses that are means over the examples of a batch."""
CLASSIFICATION = Task("classification", classification_loss, accuracy)
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        CLASSIFICATION,
        Task("regression", regression_loss, rmse),
        Task("multi-label", multi_label_loss, f1),
        Task("next-token", next_token_loss, perplexity),
    )
}
"""Built-in tasks by ``task.name``."""
