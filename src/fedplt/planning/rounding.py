"""From layer ratios to whole sub-layers: how many of each layer's sub-layers a client trains."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import PlanError
from fedplt.planning.allocation import Allocation, balanced_layer_ratios
from fedplt.planning.layers import Layers

Turns = tuple[float, ...]
"""The sum of all earlier clients' shares in layers for which clients take turns, per layer."""

_MAX_ENUMERATED = 12
_NEGLIGIBLE = 1e-9  # shares this close to a whole number are that number


def whole_sublayers(
    layers: Layers, layer_ratios: NDArray[np.float64], turns: Turns | None = None
) -> tuple[NDArray[np.int32], Turns]:
    """Counts of sub-layers, (clients, layers), for layer ratios of the same shape.

    A count is the floor or the ceiling of the client's share of the layer, chosen so that the
    total ratio is met as closely as possible (ties: the more balanced choice). If a share is
    below one sub-layer, clients take turns: some get one and some none, with the share as their
    mean. Every client trains at least one sub-layer. ``turns`` is what this function returned for
    the clients before these.
    """
    shares = layer_ratios * np.asarray(layers.num_sublayers)
    floors = np.floor(shares + _NEGLIGIBLE)
    small = np.where((shares > _NEGLIGIBLE) & (shares < 1 - _NEGLIGIBLE), shares, 0.0)
    # Any consecutive clients together get the sum of their shares, rounded. The sums are
    # sequential: the same bits whether clients are rounded together or one group after another.
    before = np.zeros(len(layers)) if turns is None else turns
    sums = np.cumsum(np.vstack([before, small]), axis=0)  # (clients + 1, layers)
    counts = np.where(small > 0, np.diff(np.floor(sums + 0.5), axis=0), floors)

    undecided = np.where((small == 0) & (shares - floors > _NEGLIGIBLE), shares - floors, 0.0)
    keys = np.concatenate([shares, counts], axis=1)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    weights = np.array([layer.sublayer_size for layer in layers], dtype=np.float64)
    rounded = np.stack(
        [
            _round_up_some(counts[k], undecided[k], float(shares[k] @ weights), weights)
            for k in first
        ]
    )
    result = rounded[inverse.reshape(-1)].astype(np.int32)

    idle = np.flatnonzero(result.sum(axis=1) == 0)
    if len(idle):
        smallest = np.argmin(np.where(layer_ratios[idle] > 0, weights, np.inf), axis=1)
        result[idle, smallest] = 1
    return result, tuple(sums[-1].tolist())


def _round_up_some(
    counts: NDArray[np.float64],
    rests: NDArray[np.float64],
    target: float,
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Round up those layers (with a fractional share) that bring the total closest to target."""
    open_layers = np.flatnonzero(rests)
    if len(open_layers) > _MAX_ENUMERATED:
        return _round_up_greedily(counts, open_layers, target, weights)
    choices = np.array(list(itertools.product((0.0, 1.0), repeat=len(open_layers))))
    candidates = np.repeat(counts[None, :], len(choices), axis=0)
    candidates[:, open_layers] += choices
    errors = np.abs(candidates @ weights - target)
    contributions = candidates * weights / np.maximum(candidates @ weights, 1)[:, None]
    imbalance = np.sum((contributions - 1 / len(weights)) ** 2, axis=1)
    best: NDArray[np.float64] = candidates[np.lexsort((imbalance, errors))[0]]
    return best


def _round_up_greedily(
    counts: NDArray[np.float64],
    open_layers: NDArray[np.int64],
    target: float,
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The same for many layers, greedily: largest sub-layers first, each if it helps."""
    counts = counts.copy()
    missing = target - float(counts @ weights)
    for layer in open_layers[np.argsort(-weights[open_layers], kind="stable")]:
        if abs(missing - weights[layer]) < abs(missing):
            counts[layer] += 1
            missing -= float(weights[layer])
    return counts


def next_counts(
    layers: Layers, ratios: Sequence[float | Allocation], turns: Turns | None = None
) -> tuple[NDArray[np.int32], Turns]:
    """Sub-layers of the next clients of a fleet, (clients, layers), as one plan of all would give.

    ``turns`` is what this function returned for the clients before them.
    """
    return whole_sublayers(layers, spread_ratios(layers, ratios)[1], turns)


def spread_ratios(
    layers: Layers, ratios: Sequence[float | Allocation]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Every client's ratio, (clients,), and its fraction of every layer, (clients, layers)."""
    if not hasattr(ratios, "__len__") or not len(ratios):
        raise PlanError(f"ratios is {ratios!r:.60}; give a list with one per client.")
    given_ratios = [r.ratio if isinstance(r, Allocation) else r for r in ratios]
    try:
        wanted = np.array(given_ratios, dtype=float)
    except (TypeError, ValueError) as error:
        raise PlanError(f"ratios are {given_ratios!r:.60}; give one number per client.") from error
    wrong = np.flatnonzero(~((wanted > 0) & (wanted <= 1)))
    if len(wrong):
        client = int(wrong[0])
        raise PlanError(f"client {client} has ratio {wanted[client]}; a ratio lies in (0, 1].")
    layer_ratios = balanced_ratios(layers, wanted)
    for client, given in enumerate(ratios):
        if isinstance(given, Allocation):
            if given.layer_sizes != layers.sizes:
                raise PlanError(
                    f"client {client}'s allocation is for layers of {list(given.layer_sizes)} "
                    f"parameters; this model's have {list(layers.sizes)}."
                )
            layer_ratios[client] = given.layer_ratios
    return wanted, layer_ratios


def balanced_ratios(
    layers: Layers, ratios: NDArray[np.float64], frozen: int = 0
) -> NDArray[np.float64]:
    """Fraction of every layer, (clients, layers), without the first ``frozen`` layers.

    Layers that are always trained come first, the others share the rest.
    """
    always = np.array([layer.always for layer in layers])
    shared = ~always & (np.arange(len(layers)) >= frozen)
    if shared.all():
        return balanced_layer_ratios(layers.sizes, ratios)
    sizes = np.asarray(layers.sizes, dtype=np.float64)
    fixed, free = float(sizes[always].sum()), float(sizes[shared].sum())
    poor = np.flatnonzero(ratios * layers.size < fixed * (1 - 1e-9))
    if len(poor):
        raise PlanError(
            f"client {poor[0]} has ratio {ratios[poor[0]]:g}, but the layers that are always "
            f"trained are {fixed / layers.size:.4f} of the model. Raise "
            "the ratio, or make fewer layers always trained."
        )
    result = np.tile(always.astype(np.float64), (len(ratios), 1))
    if free:
        rest = np.clip((ratios * layers.size - fixed) / free, 0.0, 1.0)
        result[:, shared] = balanced_layer_ratios(sizes[shared].astype(int).tolist(), rest)
    return result
