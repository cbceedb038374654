"""The probabilities that make the sampled sum of updates vary least, for a given budget."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedplt.sampling.fleet import Fleet, Numbers


def sampling_probabilities(
    update_norms: ArrayLike, num_examples: ArrayLike, ratios: ArrayLike, budget: float
) -> Numbers:
    r"""Probabilities of FedPLT-aware optimal client sampling (paper, section V, corrected).

    Solves :math:`\min_p \sum_k n_k^2 \lVert U_k\rVert^2 (1/p_k - 1)` subject to
    :math:`0 \le p_k \le 1` and :math:`\sum_k r_k p_k = \kappa`. The solution is

    .. math:: p_k = \min(1, s\, n_k \lVert U_k\rVert / \sqrt{r_k})

    with the one :math:`s > 0` that spends the budget.

    Args:
        update_norms: :math:`\lVert U_k\rVert`, one per client.
        num_examples: :math:`n_k`, or one number for all.
        ratios: :math:`r_k`, the fraction of the model that a client uploads, or one number for all.
            With 1 this is the original optimal client sampling, whose budget counts clients.
        budget: :math:`\kappa`, the expected sum of the chosen clients' ratios: 5.0 is as much as
            five whole models.

    A client whose update is zero gets probability 0, and the budget is spent as far as the others
    reach. If all updates are zero, everybody gets the same probability.

    The paper's derivation gives this; its printed rule does not (``docs/errata.md``, 1). See
    :func:`fedplt.sampling.paper_probabilities` for that.

    >>> sampling_probabilities([1.0, 2.0, 3.0], num_examples=1, ratios=1, budget=1.5).round(3)
    array([0.25, 0.5 , 0.75])
    >>> sampling_probabilities([1.0, 1.0, 9.0], 1, [0.25, 1.0, 1.0], budget=1.5).round(3)
    array([0.667, 0.333, 1.   ])
    """
    fleet = Fleet.checked(update_norms, num_examples, ratios, budget)
    return _spend(fleet.log_scores(-0.5), fleet)


def proportional_probabilities(scores: ArrayLike, ratios: ArrayLike, budget: float) -> Numbers:
    r"""Probabilities in proportion to given scores, with the same budget.

    :math:`p_k = \min(1, s\, a_k)` with the one :math:`s > 0` for which
    :math:`\sum_k r_k p_k = \kappa`. It makes rules comparable that spend different amounts: with
    :math:`a_k = n_k \lVert U_k\rVert` it is the original optimal client sampling with a budget in
    whole models instead of clients. Zero scores are treated as by :func:`sampling_probabilities`.

    >>> proportional_probabilities([1.0, 2.0, 9.0], [0.5, 0.5, 1.0], budget=1.75).round(3)
    array([0.5, 1. , 1. ])
    """
    fleet = Fleet.checked(scores, 1, ratios, budget)
    return _spend(fleet.log_scores(0.0), fleet)


def _spend(scores: Numbers, fleet: Fleet) -> Numbers:
    r""":math:`\min(1, s\, e^{score})` with the one s that spends the fleet's budget."""
    order = np.argsort(scores, kind="stable")
    order = order[np.count_nonzero(np.isneginf(scores)) :]  # zero updates come first: leave them
    if not len(order):
        return fleet.uniform()
    result = np.zeros(len(scores))
    scores, costs = scores[order], fleet.ratios[order]
    above = np.cumsum(costs[::-1])[::-1] - costs  # of all clients with larger scores
    if fleet.budget >= above[0] + costs[0]:
        result[order] = 1.0
        return result
    # Say client i (in ascending order) is the last that is not certain. Then `left` is the budget
    # for 0 to i, and it is right if s * score[i] <= 1, that is if left <= sum of costs * scores
    # relative to score[i]. The largest such i is the optimum; i = 0 always is such (but rounding).
    left = fleet.budget - above
    reach = np.exp(np.logaddexp.accumulate(scores + np.log(costs)) - scores)
    last = int(np.flatnonzero(left <= reach).max(initial=0))
    shares = np.exp(scores[: last + 1] - scores[last])
    result[order[: last + 1]] = np.minimum(1.0, left[last] * shares / (costs[: last + 1] @ shares))
    result[order[last + 1 :]] = 1.0
    return result


def sampling_variance(
    probabilities: ArrayLike, update_norms: ArrayLike, num_examples: ArrayLike
) -> float:
    r"""Variance of the sampled sum, :math:`\sum_k n_k^2 \lVert U_k\rVert^2 (1/p_k - 1)`.

    >>> sampling_variance([1.0, 0.5, 0.0], [7.0, 3.0, 0.0], num_examples=1)
    9.0
    """
    weights = np.asarray(update_norms, dtype=np.float64) * np.asarray(
        num_examples, dtype=np.float64
    )
    counts = weights > 0  # a zero update varies not at all, however rarely it is chosen
    with np.errstate(divide="ignore"):
        odds = 1 / np.broadcast_to(probabilities, weights.shape)[counts] - 1
    return float(np.sum(weights[counts] ** 2 * odds))
