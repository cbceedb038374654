"""The paper's sampling rule as it is printed, kept only to compare it with the optimum."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedplt.sampling.optimal import Fleet, Numbers


def paper_probabilities(
    update_norms: ArrayLike, num_examples: ArrayLike, ratios: ArrayLike, budget: float
) -> Numbers:
    r"""The rule as printed, whose "probabilities" may exceed 1 (``docs/errata.md``, 1).

    It orders clients by :math:`a_k = \sqrt{r_k}\, n_k \lVert U_k\rVert` (the derivation needs a
    division by :math:`\sqrt{r_k}`), takes the smallest into :math:`\mathcal O` until their ratios
    exceed :math:`\sum_j r_j - \kappa`, then goes on while

    .. math:: a_k < \frac{\sum_{j \in \mathcal O \cup \{k\}} a_j}
                        {\kappa - \sum_j r_j + \sum_{j \in \mathcal O} r_j}

    and sets :math:`p_k = (\kappa - \sum_j r_j + \sum_{\mathcal O} r_j)\, n_k \lVert U_k\rVert /
    (\sqrt{r_k} \sum_{\mathcal O} a_j)` in :math:`\mathcal O`, 1 outside. Clip them before a
    draw: because of the stopping test they may exceed 1 even if all ratios are 1.

    >>> paper_probabilities([1.0, 1.0, 1.0], 1, [0.04, 1.0, 1.0], budget=1.5).round(3)
    array([3.409, 0.682, 0.682])
    """
    fleet = Fleet.checked(update_norms, num_examples, ratios, budget)
    scores, costs = fleet.log_scores(0.5), fleet.ratios
    if np.isneginf(scores).all():
        return fleet.uniform()
    scores = np.exp(scores - scores.max())
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    taken, sums = np.cumsum(costs[order]), np.cumsum(ordered)
    left = budget - taken[-1] + taken
    start = int(np.flatnonzero(left > 0)[0])  # the smallest set whose ratios exceed sum - budget
    # Candidate i joins 0 to i - 1; the printed test divides by what is left without it.
    fails = np.flatnonzero(ordered[1:] * left[:-1] >= sums[1:]) + 1
    fails = fails[fails > start]
    last = int(fails[0]) - 1 if len(fails) else len(order) - 1
    result = np.ones(len(scores))
    inside = order[: last + 1]
    if sums[last] > 0:
        result[inside] = left[last] * scores[inside] / costs[inside] / sums[last]
    else:
        result[inside] = 0.0
    return result
