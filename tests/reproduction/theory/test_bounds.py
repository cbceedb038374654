"""The bounds as formulas; the induction that fails."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedplt.errors import FedpltError
from reproduction.theory import finite_horizon_bound
from reproduction.theory.bounds import masked_alignments


def one_over_t(z: float, steps: int) -> list[float]:
    """The paper's decaying step sizes, 1 / (z (t + 1))."""
    return (1 / (z * np.arange(1, steps + 1))).tolist()


z_values, b_values, starts = st.floats(0.01, 10), st.floats(0, 100), st.floats(0, 100)


@given(starts, z_values, b_values, st.lists(st.floats(1e-4, 1), min_size=1, max_size=20))
def test_the_theorem_is_the_recursion_unrolled(start, z, residual, fractions):
    steps = [fraction / z for fraction in fractions]
    whole = np.prod([1 - z * step for step in steps]) * start
    for t, step in enumerate(steps):
        whole += residual * step**2 * np.prod([1 - z * later for later in steps[t + 1 :]])
    assert finite_horizon_bound(start, z, residual, steps)[-1] == pytest.approx(whole)


@given(starts, z_values, b_values, st.floats(1e-3, 1), st.integers(1, 60))
def test_the_constant_corollary_bounds_the_recursion(start, z, residual, fraction, steps):
    step = fraction / z
    exact = finite_horizon_bound(start, z, residual, [step] * steps)[-1]
    bound = (1 - z * step) ** steps * start + step * residual / z
    assert exact <= bound * (1 + 1e-9) + 1e-300  # where floats underflow


@given(starts, z_values, b_values, st.integers(1, 80))
def test_decaying_steps_give_log_t_over_t(start, z, residual, steps):
    """Exactly: the first step of size 1 / z forgets the start. The paper claims 1 / t."""
    exact = finite_horizon_bound(start, z, residual, one_over_t(z, steps))[-1]
    bound = residual * math.fsum(1 / t for t in range(1, steps + 1)) / (z**2 * steps)
    assert exact == pytest.approx(bound, rel=1e-6, abs=1e-9 * (start + residual) + 1e-300)


@given(starts, z_values, b_values, st.integers(1, 200))
def test_steps_twice_as_long_reach_one_over_t(start, z, residual, steps):
    step_sizes = (2 / (z * np.arange(2, steps + 2))).tolist()
    exact = finite_horizon_bound(start, z, residual, step_sizes)[-1]
    bound = 4 * residual / (z**2 * (steps + 2))
    assert exact <= bound * (1 + 1e-9) + 1e-9 * start + 1e-300  # the smallest numbers round up


def test_the_papers_one_over_t_fails_for_its_own_step_sizes():
    """No constant C serves all t: t D^t grows like log t."""
    bounds = finite_horizon_bound(0.0, 1.0, 1.0, one_over_t(1.0, 4000))
    times = np.arange(1, 4001) * bounds[1:]
    assert times[10] > 3 > times[5]
    assert times[3999] > 8.8


def test_steps_too_long_are_refused():
    with pytest.raises(FedpltError, match="lies in"):
        finite_horizon_bound(1.0, 2.0, 1.0, [0.6])


vectors = st.lists(st.floats(-10, 10).filter(lambda x: abs(x) > 1e-3), min_size=3, max_size=3)


@given(vectors, vectors, st.lists(st.booleans(), min_size=3, max_size=3).filter(any))
def test_alignment_is_made_of_its_angles(gradient, offset, mask):
    gradient, offset, mask = np.array(gradient), np.array(offset), np.array(mask)
    masked = gradient * mask
    rho = masked_alignments(gradient[None], mask[None], offset[None])[0]
    full, kept, between = (
        a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        for a, b in ((gradient, offset), (masked, offset), (masked, gradient))
    )
    if abs(full) > 1e-3:
        assert rho == pytest.approx(between * kept / full, rel=1e-6, abs=1e-9)
        if kept > full > 0:
            assert rho > between * (1 - 1e-9)
