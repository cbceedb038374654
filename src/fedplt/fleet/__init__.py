"""Devices, and what each should train so that nobody straggles."""

from __future__ import annotations

from fedplt.fleet.devices import DeviceProfile
from fedplt.fleet.planner import DevicePlan, FleetPlan, RoundTime, plan_fleet, round_time
from fedplt.fleet.summary import fleet_json, fleet_summary
from fedplt.fleet.target import Target
from fedplt.fleet.workload import (
    ExactWorkload,
    PaperWorkload,
    Work,
    Workload,
    frozen_prefix_allocation,
)

__all__ = [
    "DevicePlan", "DeviceProfile", "ExactWorkload", "FleetPlan", "PaperWorkload", "RoundTime",
    "Target", "Work", "Workload", "fleet_json", "fleet_summary", "frozen_prefix_allocation",
    "plan_fleet", "round_time",
]  # fmt: skip
