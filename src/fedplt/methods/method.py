"""What a method is: a rule for who trains what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedplt.allocation import Allocation
from fedplt.layers import Layers
from fedplt.plan import Plan


@dataclass(frozen=True)
class PlanRequest:
    """What a method may plan from."""

    layers: Layers
    ratios: Sequence[float | Allocation]
    """One per client: what its device can bear."""
    seed: int = 0


class Method(Protocol):
    """Engine, training, aggregation and evaluation are shared; a method only plans."""

    def plan(self, request: PlanRequest) -> Plan:
        """Who trains what, for all clients."""
