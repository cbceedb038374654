"""Plans of a fleet: what each device should do, how long it takes, and targets to choose from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from fedplt.errors import FleetError
from fedplt.fleet.devices import DeviceProfile
from fedplt.fleet.workload import Work
from fedplt.text import brief, seconds_text

TIME_TOLERANCE = 1e-9
"""Relative. Times are sums of rounded numbers, and a target may be a device's own time: nobody may
be late by a last bit."""


@dataclass(frozen=True)
class RoundTime:
    """Seconds of a client's round, part by part."""

    latency: float
    download: float
    forward: float
    backward: float
    upload: float

    @property
    def total(self) -> float:
        return self.latency + self.download + self.forward + self.backward + self.upload


def round_time(device: DeviceProfile, work: Work) -> RoundTime:
    """How long this work takes this device.

    >>> tv = DeviceProfile("tv", 30e9, 200e6, 50e6, latency_seconds=0.2)
    >>> round(round_time(tv, Work(1.5e9, 3e9, 20e6, 20e6)).total, 2)
    4.35
    """
    return RoundTime(
        device.latency_seconds,
        8 * work.bytes_down / device.down_bits_per_second,
        work.forward_flops / device.flops_per_second,
        work.backward_flops / device.flops_per_second,
        8 * work.bytes_up / device.up_bits_per_second,
    )


def in_time(seconds: float, limit: float) -> bool:
    """Whether a round is not late; whoever plans a device and whoever waits for it ask here.

    >>> in_time(1.5 + 1e-12, 1.5), in_time(1.5014, 1.5)
    (True, False)
    """
    return seconds <= limit * (1 + TIME_TOLERANCE)


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


@dataclass(frozen=True)
class DevicePlan:
    """What one device should do, and what that takes."""

    device: DeviceProfile
    ratio: float
    local_steps: int
    frozen_layers: int
    full: RoundTime
    planned: RoundTime
    """Of the slowest client with this device: some take a turn where others do not."""
    full_work: Work
    work: Work
    reason: str = ""
    """Why the device cannot meet the target; empty where it does."""
    traded: str = ""
    """What was given up, besides the ratio, to meet the target."""
    note: str = ""
    """A note if memory, not time, limits the ratio."""

    def __repr__(self) -> str:
        late = "" if self.feasible else ", late"
        seconds = f"{seconds_text(self.planned.total)} s a round{late}"
        return f"<DevicePlan {self.device.name!r}: ratio {self.ratio:.3g}, {seconds}>"

    @property
    def feasible(self) -> bool:
        return not self.reason


class PlanLimits(NamedTuple):
    """What the planner may do to a slow device."""

    min_ratio: float
    may_freeze: bool
    may_cut_steps: bool


@dataclass(frozen=True)
class DeadlineChoice:
    """A deadline, and what planning for it gives."""

    seconds: float
    late: tuple[str, ...]
    """Devices that miss it; empty: everyone meets it."""
    mean_ratio: float
    """Over the clients that meet it."""
    smallest_ratio: float


@dataclass(frozen=True)
class FleetPlan:
    """The devices' plans and the time aimed for."""

    devices: tuple[DevicePlan, ...]
    target_seconds: float
    target: Target
    work: str
    limits: PlanLimits

    __repr__ = brief

    @property
    def full_round_seconds(self) -> float:
        return max(entry.full.total for entry in self.devices)

    @property
    def round_seconds(self) -> float:
        return max(entry.planned.total for entry in self.devices)

    def full_idle(self, entry: DevicePlan) -> float:
        """Seconds a device would wait for the slowest one if all trained everything."""
        return self.full_round_seconds - entry.full.total

    def idle(self, entry: DevicePlan) -> float:
        """The same under the plan."""
        return self.round_seconds - entry.planned.total


MAX_LEFT_OUT = 3
_ATTEMPTS = 8


def deadline_choices(
    least_seconds: Sequence[float], plan: Callable[[float], FleetPlan]
) -> list[DeadlineChoice]:
    """The smallest deadline that everyone meets, then those of all but the slowest one, two, ...

    ``least_seconds`` are the devices' shortest times (infinite: no deadline helps) and ``plan``
    plans for a deadline. Deadlines are rounded up to three digits: they can be used as shown.
    """
    possible = sorted((each for each in least_seconds if math.isfinite(each)), reverse=True)
    result: list[DeadlineChoice] = []
    for number, shortest in enumerate(possible[: MAX_LEFT_OUT + 1]):
        wanted = len(possible) - number
        choice = _choice(rounded_up(shortest), wanted, plan)
        if choice is not None and (not result or choice.seconds < result[-1].seconds):
            result.append(choice)
    return result


def _choice(
    seconds: float, wanted: int, plan: Callable[[float], FleetPlan]
) -> DeadlineChoice | None:
    """The plan for this deadline, or one a little longer, that at least ``wanted`` meet."""
    for _ in range(_ATTEMPTS):
        made = plan(seconds)
        met = [entry for entry in made.devices if entry.feasible]
        if len(met) >= wanted:
            number = sum(entry.device.count for entry in met)
            mean = sum(entry.device.count * entry.ratio for entry in met) / number
            late = tuple(entry.device.name for entry in made.devices if not entry.feasible)
            return DeadlineChoice(seconds, late, mean, min(entry.ratio for entry in met))
        # Where clients take turns, a device's least work depends on the plans of others.
        times = sorted(entry.planned.total for entry in made.devices if not entry.feasible)
        seconds = rounded_up(max(times[wanted - len(met) - 1], seconds * 1.01))
    return None


def rounded_up(seconds: float) -> float:
    """
    >>> rounded_up(11.4701), rounded_up(0.12345), rounded_up(1234.5), rounded_up(2.5)
    (11.5, 0.124, 1240.0, 2.5)
    """
    digits = 2 - math.floor(math.log10(seconds))
    scaled = seconds * 10**digits if digits >= 0 else seconds / 10**-digits
    up = math.ceil(scaled * (1 - 1e-12))
    return up / 10**digits if digits >= 0 else float(up * 10**-digits)
