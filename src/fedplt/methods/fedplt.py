"""FedPLT: every client trains a fixed, balanced slice of every layer, sized to its device."""

from __future__ import annotations

from dataclasses import dataclass

from fedplt.methods.method import PlanRequest
from fedplt.plan import Plan, make_plan


@dataclass(frozen=True)
class FedPLT:
    """Holds everything, trains rotating output slices of every layer."""

    def plan(self, request: PlanRequest) -> Plan:
        return make_plan(request.layers, request.ratios)
