"""The plan as a printed table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedplt.text import counted, short_names, table

if TYPE_CHECKING:
    from fedplt.planning.plan import Plan

MAX_GROUPS = 12
NAME = 16
"""Width of a layer's name above its column."""


def plan_summary(plan: Plan) -> str:
    """Groups of clients, layers and their coverage, and warnings."""
    parts = [
        f"{counted(plan.num_clients, 'client')}, {counted(len(plan.layers), 'layer')}, "
        f"{counted(plan.layers.size, 'parameter')}, plan {plan.fingerprint}",
        _groups(plan),
        _layers(plan),
        *warnings(plan),
    ]
    return "\n\n".join(part for part in parts if part)


def warnings(plan: Plan) -> list[str]:
    """Warnings before training: uncovered sub-layers, and clients that train none of a layer."""
    result = [f"WARNING: {entry}" for entry in plan.uncovered]
    for layer, without in zip(plan.layers, (plan.counts == 0).sum(axis=0), strict=True):
        if without:
            result.append(
                f"Note: layer {layer.name}: {without} of {counted(plan.num_clients, 'client')} "
                "train none of it. Their share is less than one sub-layer, so such clients take "
                "turns (or their allocation leaves the layer out)."
            )
    return result


def _groups(plan: Plan) -> str:
    rows = []
    for members in _similar_clients(plan.ratios):
        layer_ratios = plan.layer_ratios[members].mean(axis=0)
        rows.append(
            [
                str(len(members)),
                _spread(plan.ratios[members]),
                _spread(plan.achieved_ratios[members]),
                *(f"{q:.3f}" for q in layer_ratios),
            ]
        )
    header = [
        "clients",
        "ratio",
        "achieved",
        *short_names([layer.name for layer in plan.layers], NAME),
    ]
    return table(header, rows)


def _similar_clients(ratios: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Clients grouped by ratio; by similar ratios if there are too many different ones."""
    distinct, inverse = np.unique(-ratios, return_inverse=True)
    if len(distinct) <= MAX_GROUPS:
        return [np.flatnonzero(inverse.reshape(-1) == group) for group in range(len(distinct))]
    return np.array_split(np.argsort(-ratios, kind="stable"), MAX_GROUPS)


def _spread(values: NDArray[np.float64]) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.4f}" if high - low < 5e-5 else f"{low:.4f}-{high:.4f}"


def _layers(plan: Plan) -> str:
    names = short_names([layer.name for layer in plan.layers])
    rows = [
        [
            name,
            f"{layer.size:,}",
            str(layer.num_sublayers),
            f"{layer.sublayer_size:,}",
            f"{clients.min()}-{clients.max()}",
        ]
        for name, layer, clients in zip(names, plan.layers, plan.coverage, strict=True)
    ]
    header = ["layer", "parameters", "sub-layers", "each", "clients per sub-layer"]
    return table(header, rows)
