"""The optimum of client sampling: against a convex solver, its own conditions, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, minimize

from fedplt import SamplingError
from fedplt.sampling import sampling_probabilities, sampling_variance
from tests.support.fleets import fleets
from tests.support.work import executed_lines


def solved(norms, examples, ratios, budget):
    """The same problem, given to a general solver of constrained problems."""
    weights = (norms * examples) ** 2
    weights = weights / weights.max()
    answer = minimize(
        lambda p: float(np.sum(weights / p)),
        np.full(len(norms), min(1.0, budget / ratios.sum())),
        jac=lambda p: -weights / p**2,
        bounds=[(1e-9, 1)] * len(norms),
        constraints=[LinearConstraint(ratios, 0, budget)],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    p = np.clip(answer.x, 1e-9, 1)
    return p * min(1, budget / (ratios @ p))  # the solver keeps to the budget only nearly


@settings(max_examples=60)
@given(fleets(norms=st.floats(0.05, 20), max_clients=12))
def test_no_convex_solver_finds_better(fleet):
    norms, examples, ratios, budget = fleet
    ours = sampling_probabilities(norms, examples, ratios, budget)
    theirs = solved(norms, examples, ratios, budget)
    scale = float(np.sum((norms * examples) ** 2))
    ours_variance = sampling_variance(ours, norms, examples) / scale
    assert ours_variance <= sampling_variance(theirs, norms, examples) / scale * (1 + 1e-9) + 1e-9


def test_the_convex_solver_agrees():
    random = np.random.default_rng(0)
    for _ in range(20):
        norms, examples = random.uniform(0.5, 2, 8), random.integers(1, 4, 8)
        ratios = random.uniform(0.1, 1, 8)
        budget = 0.6 * float(ratios.sum())
        ours = sampling_probabilities(norms, examples, ratios, budget)
        np.testing.assert_allclose(ours, solved(norms, examples, ratios, budget), atol=2e-3)


@given(fleets())
def test_meets_the_conditions_of_the_optimum(fleet):
    """Feasible; one price for all that are uncertain; those that are certain would pay more."""
    norms, examples, ratios, budget = fleet
    p = sampling_probabilities(norms, examples, ratios, budget)
    weights = norms * examples
    assert ((p >= 0) & (p <= 1)).all()
    if not weights.any():
        assert np.ptp(p) == 0
        assert ratios @ p == pytest.approx(min(budget, ratios.sum()))
        return
    assert ratios @ p == pytest.approx(min(budget, float(ratios[weights > 0].sum())))
    assert (p[weights == 0] == 0).all()
    positive = weights > 0
    score, chance = (weights / np.sqrt(ratios))[positive], p[positive]
    uncertain = (chance > 0) & (chance < 1)
    if uncertain.any():
        price = score[uncertain] / chance[uncertain]
        np.testing.assert_allclose(price, price[0], rtol=1e-6)
        assert (score[chance == 1] >= price[0] * (1 - 1e-6)).all()


@given(fleets(norms=st.floats(0.1, 10)), st.floats(-250, 250))
def test_the_scale_of_the_norms_does_not_matter(fleet, exponent):
    norms, examples, ratios, budget = fleet
    p = sampling_probabilities(norms, examples, ratios, budget)
    scaled = sampling_probabilities(norms * 10.0**exponent, examples, ratios, budget)
    np.testing.assert_allclose(scaled, p, rtol=1e-6, atol=1e-12)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=20), st.data())
def test_with_ratio_one_it_is_the_original(norms, data):
    """The formula of Chen, Horvath and Richtarik, as they state it."""
    number = len(norms)
    budget = data.draw(st.integers(1, number - 1))
    u = np.sort(np.asarray(norms))
    sums = np.cumsum(u)
    sizes = [
        size
        for size in range(1, number + 1)
        if 0 < budget + size - number <= sums[size - 1] / u[size - 1] * (1 + 1e-12)
    ]
    size = max(sizes)
    expected = np.ones(number)
    expected[:size] = (budget + size - number) * u[:size] / sums[size - 1]
    np.testing.assert_allclose(sampling_probabilities(u, 1, 1, budget), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("norms", "ratios", "budget", "expected"),
    [
        ([3.0], 0.5, 0.25, [0.5]),  # one client
        ([3.0], 0.5, 9.0, [1.0]),  # a budget above the total
        ([0.0], 0.5, 0.25, [0.5]),  # nobody moved: uniform
        ([0.0, 0.0], [0.5, 1.0], 0.3, [0.2, 0.2]),
        ([0.0, 0.0], [0.5, 1.0], 7.0, [1.0, 1.0]),
        ([0.0, 2.0, 2.0], 1, 1.0, [0.0, 0.5, 0.5]),  # a zero norm gets nothing
        ([0.0, 2.0, 2.0], 1, 2.5, [0.0, 1.0, 1.0]),  # ... and the rest of the budget is not spent
        ([2.0, 2.0, 2.0, 2.0], 1, 3.0, [0.75] * 4),  # ties
        ([1.0, 1.0], [0.25, 1.0], 0.75, [1.0, 0.5]),  # the cheap one is certain
        ([1e300, 1e-320], 1, 1.5, [1.0, 0.5]),  # whose ratio no float holds
        ([1e308, 1e308], 1, 1.0, [0.5, 0.5]),
    ],
)
def test_awkward_fleets(norms, ratios, budget, expected):
    p = sampling_probabilities(norms, num_examples=1000, ratios=ratios, budget=budget)
    np.testing.assert_allclose(p, expected, atol=1e-12)


def test_a_hundred_thousand_clients_need_no_loop():
    random = np.random.default_rng(0)
    norms, examples = random.lognormal(0, 2, 100_000), random.integers(1, 500, 100_000)
    ratios = random.choice([1.0, 0.29, 0.06], 100_000)
    p = sampling_probabilities(norms, examples, ratios, 500.0)
    assert ratios @ p == pytest.approx(500)
    assert ((p > 0) & (p <= 1)).all()
    assert executed_lines(lambda: sampling_probabilities(norms, examples, ratios, 500.0)) < 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, -1.0], 1, 1, 1.0), r"update_norms: client 1 has -1\.0; .* at least 0"),
        (([1.0, np.nan], 1, 1, 1.0), "update_norms: client 1 has nan"),
        (([1.0, np.inf], 1, 1, 1.0), "update_norms: client 1 has inf"),
        (([1.0, 1.0], 1, [1.0, 0.0], 1.0), r"ratios: client 1 has 0\.0; .* above 0"),
        (([1.0, 1.0], [1, 2, 3], 1, 1.0), r"num_examples has shape \(3,\), but there are 2"),
        (([], 1, 1, 1.0), "at least one"),
        (([1.0], 1, 1, 0.0), r"the budget is 0\.0"),
        (([1.0], 1, 1, np.nan), "the budget is nan"),
    ],
)
def test_nonsense_is_refused(arguments, message):
    with pytest.raises(SamplingError, match=message):
        sampling_probabilities(*arguments)
