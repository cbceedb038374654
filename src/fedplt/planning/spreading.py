"""From training ratios to sub-layers, client by client: what :func:`fedplt.make_plan` gives them.

The planner of fleets asks here what a ratio means for the next clients of a fleet, before the whole
fleet is planned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import PlanError
from fedplt.planning.allocation import Allocation, balanced_layer_ratios
from fedplt.planning.layers import Layers
from fedplt.planning.rounding import Turns, turns_after, whole_sublayers


def next_counts(
    layers: Layers, ratios: Sequence[float | Allocation], turns: Turns | None = None
) -> tuple[NDArray[np.int32], Turns]:
    """Sub-layers of the next clients of a fleet, (clients, layers), as one plan of all would give.

    ``turns`` is what this function returned for the clients before them.
    """
    _, layer_ratios = spread_ratios(layers, ratios)
    counts = whole_sublayers(layers, layer_ratios, turns)
    return counts, turns_after(layers, layer_ratios, turns)


def spread_ratios(
    layers: Layers, ratios: Sequence[float | Allocation]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Every client's ratio, (clients,), and its fraction of every layer, (clients, layers)."""
    if not hasattr(ratios, "__len__"):
        raise PlanError(f"ratios is {ratios!r:.60}; give a list with one per client.")
    if not len(ratios):
        raise PlanError("no ratios were given; give one per client.")
    given_ratios = [r.ratio if isinstance(r, Allocation) else r for r in ratios]
    try:
        wanted = np.array(given_ratios, dtype=float)
    except (TypeError, ValueError) as error:
        raise PlanError(f"ratios are {given_ratios!r:.60}; give one number per client.") from error
    wrong = np.flatnonzero(~((wanted > 0) & (wanted <= 1)))
    if len(wrong):
        client = int(wrong[0])
        raise PlanError(f"client {client} has ratio {wanted[client]}; a ratio lies in (0, 1].")
    layer_ratios = _balanced(layers, wanted)
    for client, given in enumerate(ratios):
        if isinstance(given, Allocation):
            if given.layer_sizes != layers.sizes:
                raise PlanError(
                    f"client {client}'s allocation is for layers of {list(given.layer_sizes)} "
                    f"parameters; this model's have {list(layers.sizes)}."
                )
            layer_ratios[client] = given.layer_ratios
    return wanted, layer_ratios


def _balanced(layers: Layers, ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """Layer ratios: layers that are always trained come first, the others share the rest."""
    always = np.array([layer.always for layer in layers])
    if not always.any():
        return balanced_layer_ratios(layers.sizes, ratios)
    sizes = np.asarray(layers.sizes, dtype=np.float64)
    fixed, free = float(sizes[always].sum()), float(sizes[~always].sum())
    poor = np.flatnonzero(ratios * layers.size < fixed * (1 - 1e-9))
    if len(poor):
        raise PlanError(
            f"client {poor[0]} has ratio {ratios[poor[0]]:g}, but the layers that are always "
            f"trained are {fixed / layers.size:.4f} of the model. Raise "
            "the ratio, or make fewer layers always trained."
        )
    result = np.ones((len(ratios), len(layers)))
    if free:
        rest = np.clip((ratios * layers.size - fixed) / free, 0.0, 1.0)
        result[:, ~always] = balanced_layer_ratios(sizes[~always].astype(int).tolist(), rest)
    return result
