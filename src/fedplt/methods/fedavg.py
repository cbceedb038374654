"""FedAvg: every client trains everything, whatever its device can bear."""

from __future__ import annotations

from dataclasses import dataclass

from fedplt.methods.method import PlanRequest
from fedplt.plan import Plan, make_plan


@dataclass(frozen=True)
class FedAvg:
    """Holds everything, trains everything."""

    def plan(self, request: PlanRequest) -> Plan:
        return make_plan(request.layers, [1.0] * len(request.ratios))
