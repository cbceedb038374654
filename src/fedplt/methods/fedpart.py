"""FedPart: all clients train one layer at a time, in turn, after rounds of full training.

With F = ``full_rounds`` and R = ``rounds_per_layer``, a cycle of a model with L layers has F + R L
rounds: F in which all layers are trained, then R for each layer from input to output while the
others are frozen. Wang et al., "Why Go Full? Elevating Federated Learning Through Partial Network
Updates", 2024; F = 5, R = 2 and full rounds before every cycle are those of the authors' code.

Where we deviate: a layer is one of the plan (``model.groups`` can change them), where the paper has
one convolution with its normalization. Frozen normalization layers are in evaluation mode. In every
round a client downloads the whole model, also what did not change. As in the paper, all clients
train alike: ratios are ignored.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedplt.methods.fedpmt import FedPMT, from_input_to_output
from fedplt.methods.method import PlanRequest
from fedplt.planning import Assignment, Plan, SliceAssignment, make_plan, whole_assignment


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TurnsPlan(Plan):
    """Every client trains all layers, or one, by the round. ``counts`` are those of all layers."""

    method: FedPart

    @property
    def costs_change(self) -> bool:
        return True

    def assignment(self, client: int, round: int = 0) -> Assignment:
        self._check(client)
        return self._cycle[self.first_round_alike(round)]

    def first_round_alike(self, round: int) -> int:
        return round % len(self._cycle)

    @cached_property
    def _cycle(self) -> list[SliceAssignment]:
        """The assignments of a cycle, by round."""
        whole = whole_assignment(self.layers, self.local)
        order = [i for i in from_input_to_output(self.layers) if not self.layers[i].always]
        cycle = [whole] * self.method.full_rounds
        for turn in order:
            trained = [i == turn or layer.always for i, layer in enumerate(self.layers)]
            slices = tuple(s if t else () for s, t in zip(whole.slices, trained, strict=True))
            one = SliceAssignment(self.layers, slices, self.local)
            cycle += [one] * self.method.rounds_per_layer
        return cycle or [whole]

    @cached_property
    def achieved_ratios(self) -> NDArray[np.float64]:
        """The mean over a cycle."""
        return np.full(self.num_clients, np.mean([each.ratio for each in self._cycle]))

    def _extras(self) -> dict[str, Any]:
        method = {"name": self.method.reference, **asdict(self.method)}
        return {**super()._extras(), "method": method}


@dataclass(frozen=True, kw_only=True)
class FedPart(FedPMT):
    """Holds everything, trains one whole layer at a time."""

    name: ClassVar[str] = "fedpart"
    trains: ClassVar[str] = "one layer after the other, between rounds of full training"

    full_rounds: Annotated[int, Field(ge=0)] = 5
    """Rounds before every cycle in which all layers are trained."""
    rounds_per_layer: Annotated[int, Field(ge=1)] = 2

    def plan(self, request: PlanRequest) -> Plan:
        self.refuse_static_norm()
        whole = make_plan(request.layers, [1.0] * len(request.ratios))
        return TurnsPlan(whole.layers, whole.ratios, whole.counts, method=self)
