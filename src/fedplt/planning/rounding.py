"""From layer ratios to whole sub-layers: how many of each layer's sub-layers a client trains."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from fedplt.planning.layers import Layers

Turns = NDArray[np.float64]
"""The sum of all earlier clients' shares in layers for which clients take turns, (layers,)."""

_MAX_ENUMERATED = 12
_NEGLIGIBLE = 1e-9  # shares this close to a whole number are that number


def whole_sublayers(
    layers: Layers, layer_ratios: NDArray[np.float64], turns: Turns | None = None
) -> NDArray[np.int32]:
    """Counts of sub-layers, (clients, layers), for layer ratios of the same shape.

    A count is the floor or the ceiling of the client's share of the layer, chosen so that the
    total ratio is met as closely as possible (ties: the more balanced choice). If a share is
    below one sub-layer, clients take turns: some get one and some none, with the share as their
    mean. Every client trains at least one sub-layer. ``turns``: of the clients before these.
    """
    shares = layer_ratios * np.asarray(layers.num_sublayers)
    floors = np.floor(shares + _NEGLIGIBLE)
    rests = np.where(shares - floors > _NEGLIGIBLE, shares - floors, 0.0)
    small = _below_one(shares)
    taken = np.diff(np.floor(_sums(small, turns) + 0.5), axis=0)
    counts = np.where(small > 0, taken, floors)

    undecided = np.where(small > 0, 0.0, rests)
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
    return result


def turns_after(
    layers: Layers, layer_ratios: NDArray[np.float64], turns: Turns | None = None
) -> Turns:
    """The turns of all clients up to these; :func:`whole_sublayers` of the next ones needs them."""
    last: Turns = _sums(_below_one(layer_ratios * np.asarray(layers.num_sublayers)), turns)[-1]
    return last


def _below_one(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares of less than one sub-layer, for which clients take turns; 0 elsewhere."""
    return np.where((shares > _NEGLIGIBLE) & (shares < 1 - _NEGLIGIBLE), shares, 0.0)


def _sums(shares: NDArray[np.float64], turns: Turns | None) -> NDArray[np.float64]:
    """Sums of shares before the first client and after each one, (clients + 1, layers).

    Any consecutive clients together get the sum of their shares, rounded. The sums are sequential:
    the same bits whether clients are rounded together or one group after another.
    """
    start = np.zeros(shares.shape[1]) if turns is None else turns
    return np.cumsum(np.vstack([start, shares]), axis=0)


def _round_up_some(
    counts: NDArray[np.float64],
    rests: NDArray[np.float64],
    target: float,
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Round up those layers (with a fractional share) that bring the total closest to target."""
    open_layers = np.flatnonzero(rests)
    if not len(open_layers):
        return counts
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
