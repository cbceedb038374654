"""FedPMT: a weak client trains only the last layers, those nearest the output.

Ratios are discrete, one per depth, and every client trains the last layer. Gradients stop at the
lowest trained layer, so its exact FLOPs go below FedPLT's at the same ratio.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedplt.errors import ConfigError
from fedplt.methods.method import Method, PlanRequest
from fedplt.planning import Layers, LocalRecipe, Plan, make_plan


@dataclass(frozen=True, kw_only=True)
class FedPMT(Method):
    """Holds everything, trains whole layers from the output down to a depth.

    Normalization layers below the depth are in evaluation mode: the paper freezes them, and batch
    statistics would make the frozen layers depend on the batch.
    """

    name: ClassVar[str] = "fedpmt"
    holds: ClassVar[str] = "everything"
    trains: ClassVar[str] = "whole layers: the last ones, to the depth closest to its ratio"

    def plan(self, request: PlanRequest) -> Plan:
        self.refuse_static_norm()
        layers = request.layers
        requested = make_plan(layers, request.ratios)
        place = np.empty(len(layers), dtype=np.int64)  # 0 is the layer nearest the output
        place[from_input_to_output(layers)[::-1]] = np.arange(len(layers))
        always = np.array([layer.always for layer in layers])
        trained = (place[None, :] < np.arange(1, len(layers) + 1)[:, None]) | always
        sizes = trained @ np.asarray(layers.sizes)  # trained size of each depth
        errors = np.abs(sizes[None, :] - requested.ratios[:, None] * layers.size)
        counts = np.where(trained[np.argmin(errors, axis=1)], np.asarray(layers.num_sublayers), 0)
        return replace(requested, counts=counts.astype(np.int32))

    def refuse_static_norm(self) -> None:
        if self.static_norm:
            raise ConfigError(
                f"{self.name}'s frozen normalization layers use their running "
                "statistics in training, so static_norm, which gathers them only for evaluation, "
                "cannot be used. Leave it out.",
                key="method.static_norm",
            )

    @property
    def recipe(self) -> LocalRecipe:
        return replace(super().recipe, evaluate_frozen_norms=True)


def from_input_to_output(layers: Layers) -> list[int]:
    """Layers in the order in which data first reaches them (as registered where unknown).

    A layer outside the known module kinds (a class token, a recurrent layer) comes just before the
    first module that uses its output, or last if none does.
    """
    first: dict[str, float] = {}
    for place, module in enumerate(layers.flow):
        first.setdefault(module.name, place)
        for parent in module.parents:
            first.setdefault(parent, place - 0.5)
    places = [float("inf")] * len(layers)
    for placed in layers.placed:
        index = placed.layer_index
        for name in (placed.tensor.name, placed.tensor.module):
            places[index] = min(places[index], first.get(name, float("inf")))
    return sorted(range(len(layers)), key=lambda index: places[index])
