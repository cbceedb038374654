"""Metrics: what a score is called, how it is shown and compared, and how it is computed exactly."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedplt.errors import ConfigError, DataError

Sums = NDArray[np.float64]
"""A metric's numbers, summed over examples."""


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """How a metric is named, shown and compared: plain values, written into every run folder."""

    name: str
    direction: Literal["higher", "lower"]
    """Which scores are better."""
    unit: str = ""
    """``"%"``: scores are fractions, and shown times 100."""
    format: str = ".4g"
    """Python's format of a shown score."""
    limits: tuple[float, float] | None = None
    """Smallest and largest possible score, for the axes of pictures."""

    def __post_init__(self) -> None:
        if self.direction not in ("higher", "lower"):
            raise ConfigError(
                f"metric {self.name!r}: direction is {self.direction!r}; it is 'higher' or "
                "'lower', whichever scores are better."
            )
        try:
            format(1.0, self.format)
        except ValueError as error:
            raise ConfigError(f"metric {self.name!r}: format {self.format!r}: {error}") from error

    @property
    def scale(self) -> float:
        """A shown number is the score times this."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def label(self) -> str:
        """The name with its unit, for an axis: ``accuracy (%)``."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def shown_limits(self) -> tuple[float, float] | None:
        """The limits of an axis; None: as the values are."""
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
        limits = values.get("limits")
        return MetricInfo(**{**values, "limits": None if limits is None else tuple(limits)})


def mean_of(sums: Sums, num_examples: int) -> float:
    """The mean over the examples of a metric with one number per example."""
    return float(sums[0] / num_examples)


@dataclass(frozen=True)
class Metric(MetricInfo):
    """A metric: numbers per example, and how their sums over all examples become the score.

    ``Metric(function, name="pinball", direction="lower")``: ``function(outputs, targets)`` gives
    one number per example, and the score is their mean. A score that is not a mean needs
    ``finish(sums, num_examples)``: the function then gives several numbers per example, which are
    summed over all of them, so that the score is exact whatever the batches and clients are.
    """

    function: Callable[[Any, Any], Tensor]
    finish: Callable[[Sums, int], float] = field(default=mean_of, kw_only=True)
    row_limits: tuple[float, float] | None = field(default=None, kw_only=True)
    """Smallest and largest number that the function gives for an example: evaluations of nodes
    outside of them are refused. Default: ``limits`` if the score is a mean, else no limits."""

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
        return MetricInfo(**{entry.name: getattr(self, entry.name) for entry in fields(MetricInfo)})

    def rows(self, outputs: Any, targets: Any, num_examples: int) -> Tensor:
        """The function's numbers of a batch, in double precision: (examples, numbers)."""
        rows = self.function(outputs, targets)
        shape = tuple(getattr(rows, "shape", ()))
        if not shape or shape[0] != num_examples or len(shape) > 2:
            found = f"shape {shape}" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
            raise DataError(
                f"metric {self.name!r} gives {found} for {num_examples} examples; give one number "
                "per example (not their mean), or several together with finish=."
            )
        if len(shape) == 2 and shape[1] > 1 and self.is_mean:
            raise DataError(
                f"metric {self.name!r} gives {shape[1]} numbers per example; give one, or say with "
                "finish= how their sums become the score."
            )
        return rows.detach().double().cpu().reshape(num_examples, -1)

    def score(self, sums: Sums, num_examples: int) -> float:
        return float(self.finish(sums, num_examples))


def as_metric(given: Any) -> Metric:
    """A Metric, or an error that says how to make one from a function."""
    if isinstance(given, Metric):
        return given
    name = getattr(given, "__name__", "mine").strip("<>")
    raise ConfigError(
        f"{name!r} is a {type(given).__name__}, which does not say whether higher scores "
        f"are better. Write fedplt.Metric({name}, name={name!r}, direction='higher') or 'lower'; "
        "the function gives one number per example.",
        key="metric",
    )
