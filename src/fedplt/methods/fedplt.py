"""FedPLT: every client trains a fixed, balanced slice of every layer, sized to its device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from fedplt.methods.method import Method, PlanRequest
from fedplt.planning import Plan, make_plan


@dataclass(frozen=True, kw_only=True)
class FedPLT(Method):
    """Holds everything, trains rotating output slices of every layer."""

    name: ClassVar[str] = "fedplt"
    holds: ClassVar[str] = "everything"
    trains: ClassVar[str] = "a balanced slice of every layer's outputs, its own and fixed"

    rotate_every: Annotated[int, Field(ge=0)] = 0
    """Rounds after which all clients' slices move on; 0: never, as in the paper."""

    def plan(self, request: PlanRequest) -> Plan:
        return replace(make_plan(request.layers, request.ratios), rotate_every=self.rotate_every)
