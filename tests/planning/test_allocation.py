"""Golden numbers of the paper, and the mathematics of balanced allocation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedplt import PlanError, allocation_of, balanced_allocation

FCN = [401_920, 131_328, 32_896, 1_290]
CIFAR_FCN = [1_573_376, 131_328, 32_896, 1_290]
RESNET8 = [448, 4_640, 13_888, 55_296, 650]  # as the paper counts (erratum 3)

sizes = st.lists(st.integers(1, 10**7), min_size=1, max_size=8)
ratios = st.floats(1e-4, 1.0)


@pytest.mark.parametrize(
    ("layer_sizes", "ratio", "expected"),
    [
        (FCN, 0.29, (0.1622, 0.4964, 1, 1)),
        (FCN, 0.06, (0.0272, 0.0831, 0.3319, 1)),
        (CIFAR_FCN, 0.23, (0.1490, 1, 1, 1)),
        (CIFAR_FCN, 0.06, (0.0223, 0.2671, 1, 1)),
        (RESNET8, 0.18, (1, 0.8899, 0.2973, 0.0747, 1)),
        (RESNET8, 0.06, (1, 0.2441, 0.0815, 0.0205, 1)),  # erratum 11: the paper prints another
        (FCN, 1.0, (1, 1, 1, 1)),
    ],
)
def test_golden_layer_ratios(layer_sizes, ratio, expected):
    allocation = balanced_allocation(layer_sizes, ratio)
    assert allocation.layer_ratios == pytest.approx(expected, abs=1e-4)
    assert allocation.ratio == pytest.approx(ratio, abs=1e-12)
    assert allocation.relative_imbalance == 0


def test_the_printed_resnet_allocation_is_not_the_optimum():
    """Erratum 11."""
    printed = allocation_of(RESNET8, (1.0, 0.25, 0.06, 0.03, 1.0))
    assert printed.relative_imbalance == pytest.approx(0.62, abs=5e-3)


@pytest.mark.parametrize(
    ("layer_ratios", "expected"),
    [
        ([0.20, 0.45, 0.76, 0.80], 0.3053),
        ([0.10, 0.73, 0.86, 0.90], 0.6650),
        ([0.25, 0.29, 0.78, 1.00], 0.8743),
    ],
)
def test_golden_imbalance(layer_ratios, expected):
    assert allocation_of(FCN, layer_ratios).relative_imbalance == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("layer_sizes", "layer_ratios", "expected"),
    [
        (CIFAR_FCN, [0.17, 0.81, 1, 1], 0.191),
        (CIFAR_FCN, [0.20, 0.45, 0.76, 0.80], 0.899),
        (RESNET8, [0.75, 0.75, 0.25, 0.10, 1.0], 0.238),
        (RESNET8, [0.50, 0.50, 0.25, 0.12, 1.0], 0.785),
    ],
)
def test_imbalance_from_the_printed_ratios(layer_sizes, layer_ratios, expected):
    """Erratum 4: the paper's own numbers came from unrounded ratios."""
    imbalance = allocation_of(layer_sizes, layer_ratios).relative_imbalance
    assert imbalance == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("layer_sizes", "layer_ratios", "ratio", "contributions", "std"),
    [
        (FCN, (1, 1, 1, 1), 1.0, (0.708, 0.231, 0.058, 0.002), 0.278),
        (FCN, (0.08, 0.68, 0.68, 1), 0.256, (0.222, 0.615, 0.154, 0.009), 0.2245),
        (FCN, (0.30, 0.10, 0.10, 1), 0.244, (0.872, 0.095, 0.024, 0.009), 0.361),
        (RESNET8, (1,) * 5, 1.0, (0.00598, 0.06193, 0.18537, 0.73805, 0.00868), 0.27677),
        (
            RESNET8,
            (1 / 16, 1 / 16, 1 / 8, 27 / 64, 1),
            0.3475,
            (0.00108, 0.01114, 0.06669, 0.89613, 0.02497),
            0.34878,
        ),
        (
            RESNET8,
            (1, 1, 0.5, 0.25, 1),
            0.3538,
            (0.01690, 0.17505, 0.26198, 0.52154, 0.02452),
            0.18556,
        ),
    ],
)
def test_golden_configuration_tables(layer_sizes, layer_ratios, ratio, contributions, std):
    allocation = allocation_of(layer_sizes, layer_ratios)
    assert allocation.ratio == pytest.approx(ratio, abs=1e-3)
    assert allocation.contributions == pytest.approx(contributions, abs=1e-3)
    assert allocation.contributions_std == pytest.approx(std, abs=1e-3)


@given(sizes, ratios)
def test_is_feasible_and_meets_the_ratio(layer_sizes, ratio):
    allocation = balanced_allocation(layer_sizes, ratio)
    assert all(0 < q <= 1 for q in allocation.layer_ratios)
    assert allocation.ratio == pytest.approx(ratio, rel=1e-9)
    assert math.fsum(allocation.contributions) == pytest.approx(1, abs=1e-12)


@given(sizes, ratios)
def test_satisfies_the_optimality_conditions(layer_sizes, ratio):
    """x_l = min(cap_l, tau): layers below the top level are trained whole."""
    allocation = balanced_allocation(layer_sizes, ratio)
    level = max(allocation.contributions)
    for q, x in zip(allocation.layer_ratios, allocation.contributions, strict=True):
        assert q == 1.0 or x == pytest.approx(level, rel=1e-9)


@given(st.lists(st.integers(10, 1000), min_size=2, max_size=5), st.floats(0.05, 0.95))
def test_agrees_with_an_independent_solver(layer_sizes, ratio):
    caps = np.array(layer_sizes) / (ratio * sum(layer_sizes))
    even = 1 / len(layer_sizes)
    solved = minimize(
        lambda x: np.sum((x - even) ** 2),
        caps / caps.sum(),
        bounds=[(0, cap) for cap in caps],
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    ours = balanced_allocation(layer_sizes, ratio).contributions
    assert np.sum((np.array(ours) - even) ** 2) <= np.sum((solved.x - even) ** 2) + 1e-6
    assert ours == pytest.approx(solved.x, abs=2e-3)


@given(sizes, st.floats(0.01, 0.5))
def test_more_ratio_never_trains_less_of_a_layer(layer_sizes, ratio):
    small = balanced_allocation(layer_sizes, ratio).layer_ratios
    large = balanced_allocation(layer_sizes, 2 * ratio).layer_ratios
    assert all(a <= b + 1e-12 for a, b in zip(small, large, strict=True))


def test_imbalance_is_infinite_where_only_the_best_is_even():
    assert allocation_of([100, 100], [1.0, 0.0]).relative_imbalance == math.inf
    assert allocation_of([300, 200, 100], [0.1, 0.2, 0.1]).relative_imbalance == math.inf


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.1, math.nan])
def test_refuses_ratios_outside_the_range(ratio):
    with pytest.raises(PlanError, match=r"lies in \(0, 1\]"):
        balanced_allocation([10, 10], ratio)


def test_refuses_bad_allocations():
    with pytest.raises(PlanError, match="one per layer"):
        allocation_of([10, 10], [0.5])
    with pytest.raises(PlanError, match=r"layer_ratios\[1\] is 1.5"):
        allocation_of([10, 10], [0.5, 1.5])
    with pytest.raises(PlanError, match="nothing would be trained"):
        allocation_of([10, 10], [0, 0])
    with pytest.raises(PlanError, match="all positive"):
        balanced_allocation([10, 0], 0.5)
