"""Statistics by hand, and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from reproduction.statistics import f_quantile, ranks, spearman, std_ratio, trend

values = st.floats(-100, 100, allow_nan=False)


@pytest.mark.parametrize(("above", "below"), [(1, 1), (2, 2), (4, 2), (2, 4), (9, 9)])
def test_f_quantiles_are_scipys(above, below):
    for probability in (0.025, 0.5, 0.975):
        expected = scipy.stats.f.ppf(probability, above, below)
        assert f_quantile(probability, above, below) == pytest.approx(expected, rel=1e-9)


def test_the_ratio_of_spreads_by_hand():
    found = std_ratio([0.0, 2.0, 4.0], [0.0, 1.0, 2.0])  # 2 over 1, and F(2, 2) is 39
    assert found.estimate == pytest.approx(2)
    assert (found.low, found.high) == pytest.approx((2 / math.sqrt(39), 2 * math.sqrt(39)))
    assert std_ratio([1.0, 2.0], [3.0, 3.0]) is None
    assert std_ratio([1.0], [3.0, 4.0]) is None


@given(st.lists(st.tuples(values, values), min_size=2, max_size=8))
def test_spearman_is_scipys(pairs):
    first, second = zip(*pairs, strict=True)
    np.testing.assert_array_equal(ranks(first), scipy.stats.rankdata(first))
    found = spearman(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert math.isnan(found)
    else:
        expected = scipy.stats.spearmanr(first, second).statistic
        assert found == pytest.approx(expected, abs=1e-12)


def test_spearman_by_hand():
    # The paper's Fashion-MNIST table: ranks of E 1 2 3 4, of accuracy 4 3 1 2.
    assert spearman([0, 30.53, 66.5, 87.43], [77.91, 77.65, 75.35, 76.32]) == pytest.approx(-0.8)


def test_a_trend_over_seeds_by_hand():
    """Four allocations: 24 orders, one of them perfectly falling; seeds are independent."""
    order, falling = [0, 1, 2, 3], [4, 3, 2, 1]
    one = trend(order, [falling])
    assert (one.correlation, one.p_falling, one.p_rising) == pytest.approx((-1, 1 / 24, 1))
    three = trend(order, [falling] * 3)
    assert three.p_falling == pytest.approx((1 / 24) ** 3)
    mixed = trend(order, [falling, [1, 2, 3, 4]])
    assert mixed.correlation == 0
    assert mixed.p_falling == pytest.approx(mixed.p_rising)


@given(st.lists(st.permutations([1.0, 2.0, 3.0]), min_size=2, max_size=3))
def test_a_trend_is_pages_test(rows):
    expected = scipy.stats.page_trend_test(rows, method="exact").pvalue
    assert trend([0, 1, 2], rows).p_rising == pytest.approx(expected)


@given(st.lists(st.lists(values, min_size=4, max_size=4), min_size=1, max_size=3))
def test_turning_the_order_around_turns_the_trend_around(rows):
    there, back = trend([1, 2, 3, 4], rows), trend([4, 3, 2, 1], rows)
    assert there.p_falling == pytest.approx(back.p_rising)
    assert there.p_falling + there.p_rising >= 1 - 1e-12
