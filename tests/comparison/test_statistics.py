"""Spreads and intervals by hand, and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc

from fedplt.comparison.statistics import incomplete_beta, mean_interval, spread, t_quantile

values = st.floats(-100, 100, allow_nan=False)


@given(st.floats(0.5, 30), st.floats(0.5, 30), st.floats(0, 1))
def test_the_incomplete_beta_function_is_scipys(a, b, x):
    assert incomplete_beta(a, b, x) == pytest.approx(betainc(a, b, x), abs=1e-12)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 30, 200])
@pytest.mark.parametrize("probability", [0.005, 0.5, 0.9, 0.975, 0.995])
def test_t_quantiles_are_scipys(degrees, probability):
    expected = scipy.stats.t.ppf(probability, degrees)
    assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_spread_and_interval_by_hand():
    found = spread([1.0, 2.0, 4.5])
    assert (found.mean, found.number) == (2.5, 3)
    assert found.std == pytest.approx(math.sqrt((1.5**2 + 0.5**2 + 2**2) / 2))
    assert spread([3.0]).std is None
    interval = mean_interval([1.0, 2.0, 3.0])  # s = 1, t = 4.3027 with 2 degrees of freedom
    assert interval.estimate == 2
    assert interval.high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert 2 - interval.low == pytest.approx(interval.high - 2)
    single = mean_interval([0.7])
    assert (single.estimate, single.low, single.high) == (0.7, None, None)


@given(st.lists(values, min_size=2, max_size=8))
def test_the_interval_is_scipys(numbers):
    found = mean_interval(numbers)
    error = scipy.stats.sem(numbers)
    if error > 1e-9:
        low, high = scipy.stats.t.interval(0.95, len(numbers) - 1, np.mean(numbers), error)
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6, abs=1e-9)
    assert found.low <= found.estimate <= found.high
