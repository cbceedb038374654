"""FedPMT: a weak client trains only the last layers, those nearest the output.

Ratios are discrete, one per depth, and everybody trains the last layer. Gradients stop at the
lowest trained layer, so its exact FLOPs go below FedPLT's at the same ratio.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedplt.layers import Layers
from fedplt.methods.method import Method, PlanRequest
from fedplt.plan import Plan, make_plan
from fedplt.recipe import LocalRecipe


@dataclass(frozen=True, kw_only=True)
class FedPMT(Method):
    """Holds everything, trains whole layers from the output down to a depth.

    Norms below the depth are in evaluation mode: the paper freezes them, and batch statistics
    would make what is frozen depend on the batch.
    """

    name: ClassVar[str] = "fedpmt"
    holds: ClassVar[str] = "everything"
    trains: ClassVar[str] = "whole layers: the last ones, to the depth closest to its ratio"

    def plan(self, request: PlanRequest) -> Plan:
        layers = request.layers
        asked = make_plan(layers, request.ratios)
        order = from_input_to_output(layers)
        sizes = np.cumsum(np.asarray(layers.sizes)[order[::-1]])  # of the last 1, 2, ... layers
        errors = np.abs(sizes[None, :] - asked.ratios[:, None] * layers.size)
        depths = 1 + np.argmin(errors, axis=1)
        place = np.empty(len(layers), dtype=np.int64)  # 0 is the layer nearest the output
        place[order[::-1]] = np.arange(len(layers))
        counts = np.where(place[None, :] < depths[:, None], np.asarray(layers.num_sublayers), 0)
        return replace(asked, counts=counts.astype(np.int32))

    @property
    def recipe(self) -> LocalRecipe:
        return replace(super().recipe, evaluate_frozen_norms=True)


def from_input_to_output(layers: Layers) -> list[int]:
    """Layers in the order in which data first reaches them (as registered where unknown)."""
    owner = {tensor.name.rpartition(".")[0]: index for _, index, tensor in layers.placed}
    called = [owner[module.name] for module in layers.flow if module.name in owner]
    return list(dict.fromkeys([*called, *range(len(layers))]))
