"""The approximate rule, the paper's printed rule, and the draws."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedplt.sampling import (
    approximate_probabilities,
    independent_sample,
    paper_probabilities,
    sampling_probabilities,
    sampling_variance,
)
from tests.support.fleets import fleets


@given(fleets())
def test_the_approximation_never_spends_more_and_comes_near(fleet):
    norms, examples, ratios, budget = fleet
    best = sampling_probabilities(norms, examples, ratios, budget)
    few, _ = approximate_probabilities(*fleet, exchanges=1)
    many, exchanges = approximate_probabilities(*fleet, exchanges=len(norms) + 1)
    assert ratios @ few <= ratios @ many + 1e-9 <= ratios @ best + 2e-9
    np.testing.assert_allclose(many, best, atol=1e-6)
    assert exchanges <= len(norms) + 1


def test_four_exchanges_are_enough_for_usual_fleets():
    random = np.random.default_rng(0)
    for _ in range(50):
        norms, examples = random.lognormal(0, 1, 200), random.integers(10, 500, 200)
        ratios = random.choice([1.0, 0.29, 0.06], 200)
        fleet = (norms, examples, ratios, 10.0)
        best = sampling_variance(sampling_probabilities(*fleet), norms, examples)
        near = sampling_variance(approximate_probabilities(*fleet)[0], norms, examples)
        assert best <= near * (1 + 1e-9)
        assert near < 1.02 * best


@given(fleets(norms=st.floats(0.1, 10)))
def test_clipped_to_the_same_spending_the_printed_rule_is_never_better(fleet):
    norms, examples, ratios, _ = fleet
    printed = np.minimum(1, paper_probabilities(*fleet))
    spent = float(ratios @ printed)
    best = sampling_probabilities(norms, examples, ratios, spent)
    variance = sampling_variance(printed, norms, examples)
    assert sampling_variance(best, norms, examples) <= variance * (1 + 1e-9) + 1e-6


def test_the_printed_rule_is_wrong_where_ratios_differ():
    """Erratum 1: above 1 in most fleets; clipped, it wastes the budget, and varies far more."""
    random, spent, excess = np.random.default_rng(1), [], []
    above, number = 0, 300
    for _ in range(number):
        ratios = np.where(np.arange(100) < 10, 1.0, random.uniform(0.06, 0.5))
        norms, examples = random.lognormal(0, 1, 100), random.integers(10, 1000, 100)
        fleet = (norms, examples, ratios, random.uniform(5, 0.9 * min(20, ratios.sum())))
        printed = paper_probabilities(*fleet)
        above += bool(printed.max() > 1 + 1e-9)
        printed = np.minimum(1, printed)
        spent.append(ratios @ printed / fleet[3])
        best = sampling_probabilities(*fleet)
        excess.append(
            sampling_variance(printed, norms, examples) / sampling_variance(best, norms, examples)
        )
    assert above > 0.8 * number
    assert np.mean(spent) < 0.95
    assert max(spent) < 1 + 1e-9
    assert min(excess) > 1 - 1e-9
    assert np.mean(excess) > 1.5


def test_the_printed_rule_by_hand():
    # sqrt(r) n |U| = 0.5, 1, 1; the first alone has ratio 0.25 > 2.25 - 2.1, so it starts the set.
    # 1 < (0.5 + 1) / (2.1 - 2.25 + 0.25) = 15: the second joins; 1 < 2.5 / 1.1: the third too.
    printed = paper_probabilities([1.0, 1.0, 1.0], 1, [0.25, 1.0, 1.0], 2.1)
    np.testing.assert_allclose(printed, [2.1 / 0.5 / 2.5, 2.1 / 2.5, 2.1 / 2.5])
    # Its stopping test is wrong with equal ratios, too: 9 < 11 / (2 - 3 + 2), so the third joins.
    np.testing.assert_allclose(paper_probabilities([1, 1, 9], 1, 1, 2.0), np.array([2, 2, 18]) / 11)
    assert paper_probabilities([0.0, 0.0], 1, [0.25, 1.0], 0.5).tolist() == [0.4, 0.4]


def test_independent_draws_follow_their_probabilities():
    p = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    counts = np.zeros(5)
    for round in range(4000):
        counts[independent_sample(p, seed=3, round=round)] += 1
    np.testing.assert_allclose(counts / 4000, p, atol=0.03)
    assert counts[0] == 0
    assert counts[4] == 4000
    again = independent_sample(p, seed=3, round=7)
    assert again.tolist() == independent_sample(p, seed=3, round=7).tolist()
