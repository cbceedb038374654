"""The round time that a fleet's plan aims for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedplt.errors import FleetError


@dataclass(frozen=True)
class Target:
    """The round time to aim for: the fastest full client's, a deadline, or a percentile."""

    rule: Literal["fastest", "deadline", "percentile"] = "fastest"
    value: float | None = None
    """Seconds, or percent of the devices."""

    def __post_init__(self) -> None:
        if self.rule == "deadline" and not (self.value is not None and self.value > 0):
            raise FleetError(f"the deadline is {self.value}; give seconds, more than 0.")
        if self.rule == "percentile" and not (self.value is not None and 0 <= self.value <= 100):
            raise FleetError(f"the percentile is {self.value}; it lies between 0 and 100.")

    def seconds(self, full_times: Sequence[float]) -> float:
        """From the times that all devices would take to train the whole model."""
        if self.rule == "deadline":
            assert self.value is not None
            return self.value
        if self.rule == "percentile":
            assert self.value is not None
            return float(np.percentile(full_times, self.value))
        return min(full_times)

    def describe(self) -> str:
        if self.rule == "deadline":
            return "the deadline"
        if self.rule == "percentile":
            return f"percentile {self.value:g} of the full training times"
        return "the fastest device's full training time"
