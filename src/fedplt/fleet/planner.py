r"""What should each device train so that nobody straggles? (paper, section VI and its appendix)

A client's round takes

.. math:: T_k = \delta_k + \frac{\text{bytes down}}{B_k^\downarrow}
          + \frac{\text{forward} + \text{backward}(r_k)}{\gamma_k}
          + \frac{\text{bytes up}(r_k)}{B_k^\uparrow}

and the planner chooses the largest ratio whose time is within the target.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import FleetError
from fedplt.fleet.devices import DeviceProfile
from fedplt.fleet.workload import Work, Workload

_ROUNDING = 1e-12


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


@dataclass(frozen=True)
class DevicePlan:
    """What one device should do, and what that takes."""

    device: DeviceProfile
    ratio: float
    local_steps: int
    frozen_layers: int
    full: RoundTime
    planned: RoundTime
    full_work: Work
    work: Work
    reason: str = ""
    """Why the device cannot meet the target; empty where it does."""
    traded: str = ""
    """What was given up besides the ratio to meet it."""

    @property
    def feasible(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class FleetPlan:
    """The devices' plans and the time aimed for."""

    devices: tuple[DevicePlan, ...]
    target_seconds: float
    target: Target
    work: str

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


def plan_fleet(
    devices: Sequence[DeviceProfile],
    workload: Workload,
    target: Target | None = None,
    *,
    min_ratio: float = 0.01,
    may_freeze: bool = False,
    may_cut_steps: bool = False,
) -> FleetPlan:
    """The largest ratio for every device that meets the target, and the reason where none does.

    Ratios are clipped to [``min_ratio``, 1]. A device that would need less may, if allowed,
    freeze its first layers (``may_freeze``: no gradients flow through them), or else take
    fewer local steps (``may_cut_steps``).
    """
    if not devices:
        raise FleetError("no devices were given; give at least one.")
    if not 0 < min_ratio <= 1:
        raise FleetError(f"the smallest ratio is {min_ratio}; it lies in (0, 1].")
    if may_freeze and workload.num_layers == 1:
        raise FleetError(
            "freezing layers saves nothing in the paper's cost model, which knows only the ratio. "
            "Name a model, so that exact FLOPs are known, or do without freezing."
        )
    target = target or Target()
    whole = workload.work(1.0)
    full = [round_time(device, whole) for device in devices]
    everybody = [
        time.total for device, time in zip(devices, full, strict=True) for _ in range(device.count)
    ]
    seconds = target.seconds(everybody)
    planner = _Planner(workload, seconds, min_ratio, may_freeze, may_cut_steps)
    entries = [planner.plan(device, time) for device, time in zip(devices, full, strict=True)]
    return FleetPlan(tuple(entries), seconds, target, workload.describe())


def _crossing(knots: NDArray[np.float64], values: Sequence[float], limit: float) -> float:
    """The largest ratio whose (ascending) value is within the limit.

    >>> _crossing(np.array([0.0, 1.0]), [2.0, 6.0], 3.0)
    0.25
    """
    # The fastest device defines the target: a last bit must not cost it its ratio of 1.
    if values[-1] <= limit * (1 + _ROUNDING):
        return float(knots[-1])
    above = bisect_right(values, limit)
    if above == 0:
        return 0.0
    low, high = values[above - 1], values[above]
    share = (limit - low) / (high - low)
    return float(knots[above - 1] + share * (knots[above] - knots[above - 1]))


@dataclass(frozen=True, eq=False)
class _Planner:
    workload: Workload
    seconds: float
    min_ratio: float
    may_freeze: bool
    may_cut_steps: bool

    def plan(self, device: DeviceProfile, full: RoundTime) -> DevicePlan:
        largest, steps = self._largest_ratio(device), self.workload.local_steps
        if largest >= self.min_ratio:
            return self._entry(device, full, largest, steps)
        needed = f"only ratio {largest:.3g} would fit" if largest > 0 else "no ratio would fit"
        for frozen in range(1, self.workload.num_layers) if self.may_freeze else ():
            ratio = self._largest_ratio(device, frozen)
            if ratio >= self.min_ratio:
                traded = (
                    f"freezes the first {frozen} of {self.workload.num_layers} layers to train "
                    f"ratio {ratio:.3g} (with all layers {needed})"
                )
                return self._entry(device, full, ratio, steps, frozen, traded=traded)
        if self.may_cut_steps:
            depths = [  # of which enough is left to train the smallest ratio
                frozen
                for frozen in range(self.workload.num_layers if self.may_freeze else 1)
                if self.workload.knots(frozen)[-1] >= self.min_ratio
            ]
            fewer, shallow = max((self._most_steps(device, frozen), -frozen) for frozen in depths)
            if fewer:
                traded = (
                    f"takes {fewer} of {steps} local steps"
                    + (f", freezes the first {-shallow} layers" if shallow else "")
                    + f" to train ratio {self.min_ratio:g} (else {needed})"
                )
                return self._entry(device, full, self.min_ratio, fewer, -shallow, traded=traded)
        return self._entry(device, full, self.min_ratio, steps, reason=self._reason(device))

    def _fits(self, device: DeviceProfile, work: Work) -> bool:
        if device.memory_bytes is not None and work.memory_bytes > device.memory_bytes:
            return False
        return round_time(device, work).total <= self.seconds * (1 + _ROUNDING)

    def _largest_ratio(self, device: DeviceProfile, frozen: int = 0) -> float:
        """Where time or memory, linear between the knots, reach their limits; 0: nothing fits."""
        knots = self.workload.knots(frozen)
        works = self._works(frozen)
        times = [round_time(device, work).total for work in works]
        largest = _crossing(knots, times, self.seconds)
        if device.memory_bytes is not None:
            needs = [work.memory_bytes for work in works]
            largest = min(largest, _crossing(knots, needs, device.memory_bytes))
        return largest

    @cache  # noqa: B019 (lives as long as one call of plan_fleet)
    def _works(self, frozen: int) -> list[Work]:
        return [
            self.workload.work(float(ratio), frozen=frozen) for ratio in self.workload.knots(frozen)
        ]

    def _most_steps(self, device: DeviceProfile, frozen: int) -> int:
        low, high = 0, self.workload.local_steps
        while high - low > 1:
            middle = (low + high) // 2
            work = self.workload.work(self.min_ratio, local_steps=middle, frozen=frozen)
            low, high = (middle, high) if self._fits(device, work) else (low, middle)
        return low

    def _reason(self, device: DeviceProfile) -> str:
        work = self.workload.work(self.min_ratio)
        time, limit = round_time(device, work), f"{self.seconds:.2f} s"
        if device.memory_bytes is not None and work.memory_bytes > device.memory_bytes:
            return (
                f"needs {work.memory_bytes / 1e6:.1f} MB at ratio {self.min_ratio:g}, "
                f"has {device.memory_bytes / 1e6:.1f} MB"
            )
        parts = {"download": time.download, "forward pass": time.forward, "latency": time.latency}
        name, largest = max(parts.items(), key=lambda item: item[1])
        fixed = sum(parts.values())
        if largest >= self.seconds:
            return f"its {name} alone takes {largest:.2f} s, the target is {limit}"
        if fixed >= self.seconds:
            return (
                f"download, forward pass and latency take {fixed:.2f} s at any ratio, "
                f"the target is {limit}"
            )
        return f"takes {time.total:.2f} s at the smallest ratio {self.min_ratio:g}, not {limit}"

    def _entry(
        self,
        device: DeviceProfile,
        full: RoundTime,
        ratio: float,
        steps: int,
        frozen: int = 0,
        reason: str = "",
        traded: str = "",
    ) -> DevicePlan:
        work = self.workload.work(ratio, local_steps=steps, frozen=frozen)
        whole = self.workload.work(1.0)
        planned = round_time(device, work)
        return DevicePlan(device, ratio, steps, frozen, full, planned, whole, work, reason, traded)
