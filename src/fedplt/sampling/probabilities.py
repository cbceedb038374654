"""Sampling probabilities of least variance for a budget, and the rule as the paper prints it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedplt.errors import SamplingError

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SamplingInputs:
    """Finite arrays of one length: norms and examples not negative, ratios positive."""

    norms: Numbers
    examples: Numbers
    ratios: Numbers
    budget: float

    @classmethod
    def checked(
        cls, update_norms: ArrayLike, num_examples: ArrayLike, ratios: ArrayLike, budget: float
    ) -> SamplingInputs:
        """Validate the values; a single number applies to all clients."""
        shape = np.shape(update_norms)
        if len(shape) != 1 or not shape[0]:
            raise SamplingError(
                f"update_norms has shape {shape}; give one norm per client, at least one."
            )
        arrays = []
        given = {"update_norms": update_norms, "num_examples": num_examples, "ratios": ratios}
        for name, values in given.items():
            array = np.asarray(values, dtype=np.float64)
            if array.shape not in ((), shape):
                raise SamplingError(
                    f"{name} has shape {array.shape}, but there are {shape[0]} update norms; "
                    "give one number per client, or one for all."
                )
            array = np.broadcast_to(array, shape)
            good = (array > 0) if name == "ratios" else (array >= 0)
            for client in np.flatnonzero(~(good & np.isfinite(array)))[:1]:
                allowed = "above 0" if name == "ratios" else "at least 0"
                problem = f"client {client} has {array[client]}; it must be finite and {allowed}."
                raise SamplingError(f"{name}: {problem}")
            arrays.append(array)
        if not (math.isfinite(budget) and budget > 0):
            raise SamplingError(f"the budget is {budget}; it must be finite and above 0.")
        norms, examples, costs = arrays
        return cls(norms, examples, costs, float(budget))

    def log_scores(self, power: float) -> Numbers:
        r"""Logarithm of :math:`n_k \lVert U_k\rVert r_k^{power}`; minus infinity for zero.

        Logarithms, because the product of extreme floats may overflow or underflow.
        """
        with np.errstate(divide="ignore"):
            logs: Numbers = np.log(self.norms) + np.log(self.examples)
        return logs + power * np.log(self.ratios)

    def uniform(self) -> Numbers:
        """The common probability that spends the budget, at most 1."""
        return np.full(len(self.norms), min(1.0, self.budget / float(self.ratios.sum())))


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
    fleet = SamplingInputs.checked(update_norms, num_examples, ratios, budget)
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
    fleet = SamplingInputs.checked(scores, 1, ratios, budget)
    return _spend(fleet.log_scores(0.0), fleet)


def _spend(scores: Numbers, fleet: SamplingInputs) -> Numbers:
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


def approximate_probabilities(
    update_norms: ArrayLike,
    num_examples: ArrayLike,
    ratios: ArrayLike,
    budget: float,
    exchanges: int = 4,
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
    fleet = SamplingInputs.checked(update_norms, num_examples, ratios, budget)
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
    fleet = SamplingInputs.checked(update_norms, num_examples, ratios, budget)
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
