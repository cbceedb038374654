"""FedAvg: every client trains the whole model at any ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedplt.methods.method import Method, PlanRequest
from fedplt.planning import Plan, make_plan


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Holds everything, trains everything."""

    name: ClassVar[str] = "fedavg"
    holds: ClassVar[str] = "everything"
    trains: ClassVar[str] = "everything, at any ratio"

    def plan(self, request: PlanRequest) -> Plan:
        return make_plan(request.layers, [1.0] * len(request.ratios))
