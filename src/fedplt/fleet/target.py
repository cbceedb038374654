"""The round time that a fleet's plan aims for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedplt.errors import FleetError


@dataclass(frozen=True)
class Target:
    """A deadline, or a percentile of all devices' times for full training; else the fastest's."""

    deadline_seconds: float | None = None
    percentile: float | None = None
    is_raised: bool = False
    """Not everyone meets the fastest device's time: it is the shortest that everyone meets."""

    def __post_init__(self) -> None:
        deadline, percentile = self.deadline_seconds, self.percentile
        if deadline is not None and percentile is not None:
            raise FleetError("deadline_seconds and percentile were given; give one of them.")
        if deadline is not None and not deadline > 0:
            raise FleetError(f"deadline_seconds is {deadline:g}; give more than 0.")
        if percentile is not None and not 0 <= percentile <= 100:
            raise FleetError(f"percentile is {percentile:g}; it lies between 0 and 100.")

    @property
    def rule(self) -> Literal["fastest", "everyone", "deadline", "percentile"]:
        if self.deadline_seconds is not None:
            return "deadline"
        if self.percentile is not None:
            return "percentile"
        return "everyone" if self.is_raised else "fastest"

    def seconds(self, full_times: Sequence[float]) -> float:
        """From the times that all devices would take to train the whole model."""
        if self.deadline_seconds is not None:
            return self.deadline_seconds
        if self.percentile is not None:
            return float(np.percentile(full_times, self.percentile))
        return min(full_times)

    def describe(self) -> str:
        if self.deadline_seconds is not None:
            return "the deadline"
        if self.percentile is not None:
            return f"percentile {self.percentile:g} of the full training times"
        if self.is_raised:
            return "the shortest round that every device can keep up with"
        return "the fastest device's full training time"
