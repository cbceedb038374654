"""Device profiles, and a planner of what each device trains so that no round waits for it."""

from __future__ import annotations

from fedplt.fleet.devices import DeviceProfile
from fedplt.fleet.planner import DevicePlan, FleetPlan, plan_fleet
from fedplt.fleet.quantities import (
    DOWN,
    LATENCY,
    MEMORY,
    PREFIXES,
    QUANTITIES,
    SPEED,
    UP,
    Quantity,
    parse_number,
    parse_quantity,
    value_problem,
)
from fedplt.fleet.round_times import RoundTime, in_time, round_time
from fedplt.fleet.summary import fleet_json, fleet_summary
from fedplt.fleet.target import Target
from fedplt.fleet.workload import (
    ExactWorkload,
    NextWork,
    PaperWorkload,
    Work,
    Workload,
    frozen_prefix_allocation,
    planned_share,
)

__all__ = [
    "DOWN",
    "LATENCY",
    "MEMORY",
    "PREFIXES",
    "QUANTITIES",
    "SPEED",
    "UP",
    "DevicePlan",
    "DeviceProfile",
    "ExactWorkload",
    "FleetPlan",
    "NextWork",
    "PaperWorkload",
    "Quantity",
    "RoundTime",
    "Target",
    "Work",
    "Workload",
    "fleet_json",
    "fleet_summary",
    "frozen_prefix_allocation",
    "in_time",
    "parse_number",
    "parse_quantity",
    "plan_fleet",
    "planned_share",
    "round_time",
    "value_problem",
]
