"""FedDrop: federated dropout with a rate for every device.

In every round and for every client, each hidden unit is kept with the client's keep rate, and kept
activations are divided by that rate in training. The keep rate is the one whose sub-model has, on
average, the client's ratio. The paper drops neurons of fully connected layers; here convolutions
also drop channels, with one draw for all layers that a residual sum ties together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedplt.methods.method import Method, PlanRequest
from fedplt.planning import LocalRecipe, Normalizer, Plan, Units, expected_keep_rates, submodel_plan
from fedplt.seeds import generator


@dataclass(frozen=True, kw_only=True)
class FedDrop(Method):
    """Holds random rows and columns, trains all it holds."""

    name: ClassVar[str] = "feddrop"
    holds: ClassVar[str] = "random units of every hidden layer, drawn anew every round"
    trains: ClassVar[str] = "all it holds"
    is_random: ClassVar[bool] = True

    normalizer: Normalizer = "participants"
    scaler: bool = True
    """Divide kept activations by the keep rate, in training."""

    def plan(self, request: PlanRequest) -> Plan:
        layers, spaces = request.layers, request.find_spaces()
        rates = expected_keep_rates(layers, spaces, request.ratio_array)
        return submodel_plan(self, layers, spaces, request.ratios, rates, request.seed)

    def select_units(
        self, width: int, rate: float, *, space: int, seed: int, round: int, client: int
    ) -> Units:
        random = generator(seed, f"feddrop {space}", round=round, client=client)
        kept = np.flatnonzero(random.random(width) < rate)
        return kept if len(kept) else random.integers(width, size=1)

    @property
    def recipe(self) -> LocalRecipe:
        # On the inputs: a normalization layer in between would undo a scaled output.
        return replace(super().recipe, scaler="inputs" if self.scaler else "none")
