"""HeteroFL: a client holds the first units of every hidden layer, as a smaller dense model.

A width rate s keeps the first ceil(K s) of K units, so the number of weights is about s squared of
the whole. A client's rate is the one whose sub-model is closest to its ratio; the HeteroFL paper's
rates are ``rates = [1, 0.5, 0.25, 0.125, 0.0625]``. That paper averages the clients that hold a
weight with equal weights; here, as in the FedPLT paper, they are weighted by their examples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedplt.methods.method import Method, PlanRequest
from fedplt.planning import LocalRecipe, Plan, Units, closest_rates, kept_units, submodel_plan


@dataclass(frozen=True, kw_only=True)
class HeteroFL(Method):
    """Holds the leading rows and columns, trains all it holds."""

    name: ClassVar[str] = "heterofl"
    holds: ClassVar[str] = "the first units of every hidden layer"
    trains: ClassVar[str] = "all it holds"
    is_random: ClassVar[bool] = False

    rates: Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)] | None = None
    """Allowed width rates; default: any."""
    scaler: Literal["none", "normed", "all"] = "normed"
    """Divide the outputs of hidden layers by the width rate in training: only of layers before a
    normalization layer, or of all (gradients then grow with depth; small rates may diverge)."""

    def plan(self, request: PlanRequest) -> Plan:
        layers, spaces = request.layers, request.find_spaces()
        rates = closest_rates(layers, spaces, request.ratio_array, self.rates)
        return submodel_plan(self, layers, spaces, request.ratios, rates, request.seed)

    def select_units(
        self, width: int, rate: float, *, space: int, seed: int, round: int, client: int
    ) -> Units:
        return np.arange(kept_units(width, rate))

    @property
    def recipe(self) -> LocalRecipe:
        return replace(super().recipe, scaler=self.scaler)
