# mypy: implicit-reexport
"""Device profiles, and a planner of what each device trains so that no round waits for it."""

from __future__ import annotations

from fedplt.fleet.devices import (
    BINARY,
    DOWN,
    LATENCY,
    MEMORY,
    POWER,
    PREFIXES,
    QUANTITIES,
    SPEED,
    UP,
    DeviceProfile,
    Quantity,
    parse_number,
    parse_quantity,
    value_problem,
)
from fedplt.fleet.fleet_plan import FleetPlan, FleetTarget, fleet_json, fleet_summary
from fedplt.fleet.machine import available_cores, keep_freed_memory, physical_memory, power_source
from fedplt.fleet.planner import plan_deadlines, plan_fleet
from fedplt.fleet.round_times import RoundTime, in_time, round_time
from fedplt.fleet.workload import ExactWorkload, PaperWorkload, Work, Workload, planned_share
