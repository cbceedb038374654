"""Metrics: how a score is computed, shown and compared; the built-in metrics."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client.outputs import IGNORED, aligned, class_scores, next_tokens
from fedplt.errors import ConfigError, DataError

Sums = NDArray[np.float64]
"""A metric's numbers, summed over examples."""


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """How a metric is named, shown and compared: plain values, written into every run folder."""

    name: str
    direction: Literal["higher", "lower"]
    """Whether higher or lower scores are better."""
    unit: str = ""
    """``"%"``: scores are fractions, and shown times 100."""
    format: str = ".4g"
    """Python's format of a shown score."""
    limits: tuple[float, float] | None = None
    """Smallest and largest possible score, for the axes of pictures."""

    def __post_init__(self) -> None:
        if self.direction not in ("higher", "lower"):
            raise ConfigError(
                f"metric {self.name!r}: direction is {self.direction!r}; give 'higher' or 'lower'."
            )
        try:
            format(1.0, self.format)
        except ValueError as error:
            raise ConfigError(f"metric {self.name!r}: format {self.format!r}: {error}") from error

    @property
    def scale(self) -> float:
        """Factor from the score to the shown number."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def label(self) -> str:
        """The name with its unit, for an axis: ``accuracy (%)``."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def shown_limits(self) -> tuple[float, float] | None:
        """Limits of an axis; None: use the limits of the data."""
        return self.limits and (self.scale * self.limits[0], self.scale * self.limits[1])

    def number(self, score: float, more_digits: int = 0) -> str:
        """A score as shown, without its unit."""
        spec = re.sub(r"\.(\d+)", lambda m: f".{int(m[1]) + more_digits}", self.format)
        return format(self.scale * score, spec)

    def text(self, score: float, more_digits: int = 0) -> str:
        """A score as shown: ``84.2 %``."""
        number = self.number(score, more_digits)
        return f"{number} {self.unit}" if self.unit else number

    def better(self, score: float, than: float) -> bool:
        """Whether a score is better than another one; NaN is better than nothing."""
        return score > than if self.direction == "higher" else score < than

    def reaches(self, score: float, target: float) -> bool:
        """Whether a score is as good as a target."""
        return score >= target if self.direction == "higher" else score <= target

    def best(self, scores: Iterable[float]) -> float:
        return max(scores) if self.direction == "higher" else min(scores)

    def to_json(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(MetricInfo)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MetricInfo:
        limits = values.get("limits") and tuple(values["limits"])
        return MetricInfo(**{**values, "limits": limits})


def mean_of(sums: Sums, num_examples: int) -> float:
    """The mean over the examples of a metric with one number per example."""
    return float(sums[0] / num_examples)


@dataclass(frozen=True)
class Metric(MetricInfo):
    """A metric: numbers per example, and how their sums over all examples become the score.

    ``Metric(function, name="pinball", direction="lower")``: ``function(outputs, targets)`` gives
    one number per example, and the score is their mean. For a score that is not a mean, the
    function gives several numbers per example. They are summed over all examples, and
    ``finish(sums, num_examples)`` gives the score: exact for any batches and clients.
    """

    function: Callable[[Any, Any], Tensor]
    finish: Callable[[Sums, int], float] = field(default=mean_of, kw_only=True)
    row_limits: tuple[float, float] | None = field(default=None, kw_only=True)
    """Smallest and largest number that the function gives for an example; evaluations of nodes that
    exceed them are refused. Default: ``limits`` if the score is a mean, else no limits."""

    @property
    def is_mean(self) -> bool:
        """Whether the score is a mean over examples, which can be split by label."""
        return self.finish is mean_of

    @property
    def number_limits(self) -> tuple[float, float]:
        """The limits of the function's numbers; infinite if they are not known."""
        default = self.limits if self.is_mean else None
        return self.row_limits or default or (-math.inf, math.inf)

    @property
    def info(self) -> MetricInfo:
        return MetricInfo(**self.to_json())

    def rows(self, outputs: Any, targets: Any, num_examples: int) -> Tensor:
        """The function's numbers of a batch, in double precision: (examples, numbers)."""
        rows = self.function(outputs, targets)
        shape = tuple(getattr(rows, "shape", ()))
        is_single = len(shape) == 1 or shape[1:] == (1,)
        if len(shape) not in (1, 2) or shape[0] != num_examples or (self.is_mean and not is_single):
            found = f"shape {shape}" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
            raise DataError(
                f"metric {self.name!r} gives {found} for {num_examples} examples; give one number "
                "per example (not their mean), or several and finish=, to turn sums into a score."
            )
        return rows.detach().double().cpu().reshape(num_examples, -1)

    def score(self, sums: Sums, num_examples: int) -> float:
        return float(self.finish(sums, num_examples))


def as_metric(given: Any) -> Metric:
    """Refuse anything but a Metric, and show how to make one from a function."""
    if isinstance(given, Metric):
        return given
    name = getattr(given, "__name__", "mine").strip("<>")
    raise ConfigError(
        f"{name!r} is a {type(given).__name__}, which does not say whether higher scores "
        f"are better. Write fedplt.Metric({name}, name={name!r}, direction='higher') or 'lower'; "
        "the function gives one number per example.",
        key="metric",
    )


POSITIVE = (0.0, math.inf)
"""Limits of errors and counts."""


def _beside(*parts: Tensor) -> Tensor:
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


_share_metric = functools.partial(
    Metric, direction="higher", unit="%", format=".1f", limits=(0.0, 1.0)
)
accuracy = _share_metric(_right, name="accuracy")
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
    return _beside(_errors(outputs, targets).square(), wanted, wanted.square())


def _explained(sums: Sums, num_examples: int) -> float:
    errors, total, squares = sums.reshape(3, -1)
    spread = squares - total**2 / num_examples
    if (errors < 0).any() or (spread < -1e-9 * squares).any() or (squares < 0).any():
        raise DataError("R2: no targets have these sums and squares.")  # reported by a client
    constant = spread <= 1e-12 * squares
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(constant, np.where(errors > 0, 0.0, 1.0), 1 - errors / spread)
    return float(shares.mean())


r2 = Metric(_moments, name="R2", direction="higher", format=".3f", finish=_explained)
"""Explained share of the targets' variance, mean over outputs; 0 where targets are constant."""


# Several labels per example.


def _hits(outputs: Any, targets: Tensor) -> Tensor:
    logits, targets = aligned(outputs, targets)
    chosen, wanted = logits > 0, targets > 0.5
    return _beside(chosen & wanted, chosen & ~wanted, ~chosen & wanted)


def _mean_f1(sums: Sums, num_examples: int) -> float:
    hits, wrong, missed = sums.reshape(3, -1)
    return float((2 * hits / np.maximum(2 * hits + wrong + missed, 1.0)).mean())


def _f1(sums: Sums, num_examples: int) -> float:
    return _mean_f1(sums.reshape(3, -1).sum(1), num_examples)


f1 = _share_metric(_hits, name="F1", finish=_f1, row_limits=(0.0, 1.0))
"""F1 over all examples and labels together ("micro"); a label is chosen by an output above 0."""
macro_f1 = _share_metric(_hits, name="macro F1", finish=_mean_f1, row_limits=(0.0, 1.0))
"""The mean over labels of their F1 scores."""


# Next token.


def _sum_tokens(*parts: Tensor) -> Tensor:
    """Sums over the tokens of each example, one beside the other."""
    return _beside(*(part.reshape(len(part), -1).sum(1, keepdim=True) for part in parts))


def _token_losses(outputs: Any, targets: Tensor) -> Tensor:
    logits, following = next_tokens(outputs, targets)
    losses = F.cross_entropy(logits.double(), following, reduction="none", ignore_index=IGNORED)
    return _sum_tokens(losses, following != IGNORED)


def _share(sums: Sums, num_examples: int) -> float:
    return float(sums[0] / max(sums[1], 1.0))


def _perplexity(sums: Sums, num_examples: int) -> float:
    return float(np.exp(_share(sums, num_examples)))


perplexity = Metric(
    _token_losses, name="perplexity", direction="lower", finish=_perplexity, row_limits=POSITIVE
)
"""exp of the mean cross entropy per token (natural logarithm), over all tokens."""


def _right_tokens(outputs: Any, targets: Tensor) -> Tensor:
    logits, following = next_tokens(outputs, targets)
    counted = following != IGNORED
    return _sum_tokens((logits.argmax(1) == following) & counted, counted)


token_accuracy = _share_metric(
    _right_tokens, name="token accuracy", finish=_share, row_limits=POSITIVE
)
"""Share of the tokens whose largest output is the token that follows."""

METRICS: dict[str, Metric] = {
    metric.name.lower().replace(" ", "-"): metric
    for metric in (accuracy, rmse, mae, r2, f1, macro_f1, perplexity, token_accuracy)
}
"""Built-in metrics by ``task.metric``."""
