"""The probabilities that minimize the variance of the sampled sum of updates, for a budget."""

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

    with the unique :math:`s > 0` that spends the budget.

    Args:
        update_norms: :math:`\lVert U_k\rVert`, one per client.
        num_examples: :math:`n_k`, or one number for all.
        ratios: :math:`r_k`, the fraction of the model that a client uploads, or one number for all.
            With 1 this is the original optimal client sampling, whose budget counts clients.
        budget: :math:`\kappa`, the expected sum of the chosen clients' ratios: 5.0 is as much as
            five whole models.

    A client whose update is zero gets probability 0; the others spend as much of the budget as
    they can. If all updates are zero, all clients get the same probability.

    This follows from the paper's derivation; the rule that the paper prints differs
    (``docs/errata.md``, 1; :func:`fedplt.sampling.paper_probabilities`).

    >>> sampling_probabilities([1.0, 2.0, 3.0], num_examples=1, ratios=1, budget=1.5).round(3)
    array([0.25, 0.5 , 0.75])
    >>> sampling_probabilities([1.0, 1.0, 9.0], 1, [0.25, 1.0, 1.0], budget=1.5).round(3)
    array([0.667, 0.333, 1.   ])
    """
    fleet = Fleet.checked(update_norms, num_examples, ratios, budget)
    return _spend(fleet.log_scores(-0.5), fleet)


def proportional_probabilities(scores: ArrayLike, ratios: ArrayLike, budget: float) -> Numbers:
    r"""Probabilities proportional to given scores, for a budget in whole models.

    :math:`p_k = \min(1, s\, a_k)` with the unique :math:`s > 0` for which
    :math:`\sum_k r_k p_k = \kappa`. It makes rules that spend different amounts comparable: with
    :math:`a_k = n_k \lVert U_k\rVert` it is the original optimal client sampling with a budget in
    whole models instead of clients. Zero scores are treated as by :func:`sampling_probabilities`.

    >>> proportional_probabilities([1.0, 2.0, 9.0], [0.5, 0.5, 1.0], budget=1.75).round(3)
    array([0.5, 1. , 1. ])
    """
    fleet = Fleet.checked(scores, 1, ratios, budget)
    return _spend(fleet.log_scores(0.0), fleet)


def _spend(scores: Numbers, fleet: Fleet) -> Numbers:
    r""":math:`\min(1, s\, e^{score})` with the unique s that spends the fleet's budget."""
    order = np.argsort(scores, kind="stable")
    order = order[np.count_nonzero(np.isneginf(scores)) :]  # skip zero updates, which come first
    if not len(order):
        return fleet.uniform()
    result = np.zeros(len(scores))
    scores, costs = scores[order], fleet.ratios[order]
    above = np.cumsum(costs[::-1])[::-1] - costs  # of all clients with larger scores
    if fleet.budget >= above[0] + costs[0]:
        result[order] = 1.0
        return result
    # Let client i (in ascending order) be the last with probability below 1. Then `left` is the
    # budget for clients 0 to i, and i is valid if s * score[i] <= 1, that is if left <= sum of
    # costs * scores relative to score[i]. The largest valid i is the optimum; i = 0 is valid.
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
    counts = weights > 0  # a zero update adds no variance, however rarely it is chosen
    with np.errstate(divide="ignore"):
        odds = 1 / np.broadcast_to(probabilities, weights.shape)[counts] - 1
    return float(np.sum(weights[counts] ** 2 * odds))
