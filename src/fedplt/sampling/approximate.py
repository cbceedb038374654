"""Near-optimal sampling in which the server learns only sums, as secure aggregation allows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedplt.sampling.fleet import Fleet, Numbers

EXCHANGES = 4
"""As in the original; each exchange clips probabilities and rescales the others."""


def approximate_probabilities(
    update_norms: ArrayLike,
    num_examples: ArrayLike,
    ratios: ArrayLike,
    budget: float,
    exchanges: int = EXCHANGES,
) -> tuple[Numbers, int]:
    r"""Probabilities near the optimum, and the number of exchanges needed.

    The approximate optimal client sampling of Chen, Horvath and Richtarik, for unequal costs.
    With :math:`u_k = n_k \lVert U_k\rVert / \sqrt{r_k}` and budget :math:`\kappa`:

    1. The server learns :math:`\sum_k r_k u_k`; client k sets
       :math:`p_k = \min(1, \kappa\, u_k / \sum_j r_j u_j)`.
    2. An exchange: the server learns :math:`I = \sum r_k` and :math:`P = \sum r_k p_k` over the
       clients with :math:`p_k < 1`, and gives back :math:`C = (\kappa - \sum_k r_k + I) / P`;
       these clients set :math:`p_k = \min(1, C p_k)`. It stops when C is 1 or less.

    Each client knows its own p and draws for itself. Probabilities never exceed the optimum, and
    reach it when an exchange clips no client.

    >>> probabilities, exchanges = approximate_probabilities([1.0, 1.0, 9.0], 1, 1, budget=2.0)
    >>> probabilities.round(3), exchanges
    (array([0.5, 0.5, 1. ]), 2)
    """
    fleet = Fleet.checked(update_norms, num_examples, ratios, budget)
    scores, costs = fleet.log_scores(-0.5), fleet.ratios
    if np.isneginf(scores).all():
        return fleet.uniform(), 0
    # A common factor of all scores changes nothing; this one keeps the sums finite.
    scores = np.exp(scores - scores.max())
    result = np.minimum(1.0, budget * scores / (costs @ scores))
    whole = float(costs.sum())
    for done in range(1, exchanges + 1):
        below = result < 1
        uncertain, expected = float(costs[below].sum()), float(costs[below] @ result[below])
        left = budget - whole + uncertain
        if expected == 0 or left <= expected * (1 + 1e-12):
            return result, done
        result[below] = np.minimum(1.0, left * (result[below] / expected))
    return result, exchanges
