"""The built-in metrics: of classes, numbers, several labels, and next tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedplt.client.metrics import Metric, Sums
from fedplt.client.outputs import (
    IGNORED,
    aligned,
    class_scores,
    next_tokens,
    one_hot_like,
    tokens_and_targets,
)
from fedplt.errors import DataError

POSITIVE = (0.0, math.inf)
"""Limits of errors and counts."""


def _beside(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.double() for part in parts], dim=1)


# Classification.


def _right(outputs: Any, targets: Tensor) -> Tensor:
    scores, targets = class_scores(outputs, targets)
    if targets.is_floating_point():  # probabilities
        targets = targets.argmax(1)
    right = (scores.argmax(1) == targets).float()
    if right.ndim == 1:
        return right
    counted = targets != IGNORED
    if bool(counted.all()):
        return right.flatten(1).mean(1)
    return (right * counted).flatten(1).sum(1) / counted.flatten(1).sum(1).clamp(min=1)


accuracy = Metric(
    _right, name="accuracy", direction="higher", unit="%", format=".1f", limits=(0.0, 1.0)
)
"""Share of the examples whose largest output is their label.

If an example has several labels (one per token), the mean over its labels.
"""


# Regression.


def _errors(outputs: Any, targets: Tensor) -> Tensor:
    """(examples, outputs)"""
    found, wanted = aligned(outputs, targets)
    return found.double() - wanted.double()


def _squares(outputs: Any, targets: Tensor) -> Tensor:
    return _errors(outputs, targets).square().mean(1)


def _root(sums: Sums, num_examples: int) -> float:
    return float(np.sqrt(sums[0] / num_examples))


rmse = Metric(_squares, name="RMSE", direction="lower", finish=_root, row_limits=POSITIVE)
"""Root of the mean squared error, over all examples and outputs."""


def _absolutes(outputs: Any, targets: Tensor) -> Tensor:
    return _errors(outputs, targets).abs().mean(1)


mae = Metric(_absolutes, name="MAE", direction="lower", row_limits=POSITIVE)
"""Mean absolute error, over all examples and outputs."""


def _moments(outputs: Any, targets: Tensor) -> Tensor:
    wanted = aligned(outputs, targets)[1].double()
    return _beside([_errors(outputs, targets).square(), wanted, wanted.square()])


def _explained(sums: Sums, num_examples: int) -> float:
    errors, total, squares = sums.reshape(3, -1)
    spread = squares - total**2 / num_examples
    if (errors < 0).any() or (spread < -1e-9 * squares).any() or (squares < 0).any():
        raise DataError("R2: no targets have these sums and squares.")  # a client reports them
    constant = spread <= 1e-12 * squares
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(constant, np.where(errors > 0, 0.0, 1.0), 1 - errors / spread)
    return float(shares.mean())


r2 = Metric(_moments, name="R2", direction="higher", format=".3f", finish=_explained)
"""Explained share of the targets' variance, mean over outputs; 0 where targets are constant."""


# Several labels per example.


def _hits(outputs: Any, targets: Tensor) -> Tensor:
    chosen, wanted = one_hot_like(outputs, targets)
    return _beside([chosen & wanted, chosen & ~wanted, ~chosen & wanted])


def _f1(sums: Sums, num_examples: int) -> float:
    hits, wrong, missed = sums.reshape(3, -1).sum(1)
    return float(2 * hits / max(2 * hits + wrong + missed, 1.0))


def _mean_f1(sums: Sums, num_examples: int) -> float:
    hits, wrong, missed = sums.reshape(3, -1)
    return float((2 * hits / np.maximum(2 * hits + wrong + missed, 1.0)).mean())


f1 = Metric(
    _hits,
    name="F1",
    direction="higher",
    unit="%",
    format=".1f",
    limits=(0.0, 1.0),
    finish=_f1,
    row_limits=(0.0, 1.0),
)
"""F1 over all examples and labels together ("micro"); a label is chosen by an output above 0."""
macro_f1 = Metric(
    _hits, name="macro F1", direction="higher", unit="%", format=".1f", limits=(0.0, 1.0),
    finish=_mean_f1, row_limits=(0.0, 1.0),
)  # fmt: skip
"""The mean over labels of their F1 scores."""


# Next token.


def _token_losses(outputs: Any, targets: Tensor) -> Tensor:
    losses, counted = tokens_and_targets(outputs, targets)
    return _beside([losses.double().sum(1, keepdim=True), counted.sum(1, keepdim=True)])


def _perplexity(sums: Sums, num_examples: int) -> float:
    return float(np.exp(sums[0] / max(sums[1], 1.0)))


perplexity = Metric(
    _token_losses, name="perplexity", direction="lower", finish=_perplexity, row_limits=POSITIVE
)
"""exp of the mean cross entropy per token (natural logarithm), over all tokens."""


def _right_tokens(outputs: Any, targets: Tensor) -> Tensor:
    logits, following = next_tokens(outputs, targets)
    counted = following != IGNORED
    right = (logits.argmax(1) == following) & counted
    return _beside([part.flatten(1).sum(1, keepdim=True) for part in (right, counted)])


def _share(sums: Sums, num_examples: int) -> float:
    return float(sums[0] / max(sums[1], 1.0))


token_accuracy = Metric(
    _right_tokens, name="token accuracy", direction="higher", unit="%", format=".1f",
    limits=(0.0, 1.0), finish=_share, row_limits=POSITIVE,
)  # fmt: skip
"""Share of the tokens that follow which have the largest output."""

METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "rmse": rmse,
    "mae": mae,
    "r2": r2,
    "f1": f1,
    "macro-f1": macro_f1,
    "perplexity": perplexity,
    "token-accuracy": token_accuracy,
}
"""Built-in metrics by ``task.metric``."""
