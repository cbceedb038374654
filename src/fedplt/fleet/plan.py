"""What a fleet's devices should do, and what that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedplt.fleet.devices import DeviceProfile
from fedplt.fleet.round_times import RoundTime
from fedplt.fleet.target import Target
from fedplt.fleet.workload import Work
from fedplt.text import brief, seconds_text


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
