"""Where all conditions hold, the bound holds; where only the stated ones do, it may not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reproduction.theory import (
    counterexample,
    example_problem,
    rotating_masks,
    static_partial_training,
    study_convergence,
)
from reproduction.theory.examples import random_quadratics

pytestmark = pytest.mark.slow


@pytest.mark.slow
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(2, 8),
    st.floats(0, 0.3),
    st.floats(0, 1),
    st.floats(0.005, 0.1),
    st.integers(1, 4),
)
@settings(max_examples=150)
def test_the_bound_holds_where_all_conditions_hold(
    seed, clients, dimension, heterogeneity, coupling, step, local_steps
):
    random = np.random.default_rng(seed)
    problem = random_quadratics(random, clients, dimension, heterogeneity, coupling)
    masks = rotating_masks(dimension, random.uniform(0.3, 1.0, clients).tolist())
    start = problem.optimum + random.choice([-1, 1], dimension) * random.uniform(1, 3, dimension)
    report = study_convergence(
        problem, masks, [step / problem.smoothness] * 12, start, local_steps=local_steps
    )
    assume(report.all_hold)
    assert report.bound_holds
    assert report.recursion_violations == 0


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_both_kinds_of_problems(kind, local_steps):
    problem = example_problem(kind, heterogeneity=0.05)
    masks = rotating_masks(problem.dimension, [0.5] * 6)
    steps = [0.05 / problem.smoothness / (1 + t / 30) for t in range(30)]
    report = study_convergence(problem, masks, steps, problem.optimum + 3, local_steps=local_steps)
    assert report.all_hold, report.summary()
    assert report.bound_holds
    assert report.distances[-1] < report.distances[0]
    assert report.constants.masking == 1


def test_the_bound_holds_on_average_with_noise():
    problem = example_problem("quadratic", heterogeneity=0.0)
    masks = rotating_masks(problem.dimension, [0.5] * 6)
    report = study_convergence(
        problem, masks, [0.02 / problem.smoothness] * 40, problem.optimum + 3,
        noise=1.0, repeats=30,
    )  # fmt: skip
    assert report.all_hold, report.summary()
    assert report.bound_holds
    assert "proven if they always do, and it is not contradicted by the samples" in report.summary()


def noisy(seed, repeats):
    """All conditions hold, and the noise is larger than what a step gains: means stray."""
    problem = example_problem("quadratic", num_clients=1, heterogeneity=0.0, seed=seed)
    masks = rotating_masks(problem.dimension, [1.0])
    steps = [1e-5 / problem.smoothness] * 20
    return study_convergence(
        problem, masks, steps, problem.optimum + 3, noise=300.0, repeats=repeats, seed=seed
    )


@pytest.mark.parametrize("repeats", [2, 5, 20])
def test_a_mean_above_the_bound_is_no_contradiction(repeats):
    """Of an expectation: the sample means exceed the bound, the intervals do not."""
    reports = [noisy(seed, repeats) for seed in range(6)]
    assert any((report.distances > report.bounds).any() for report in reports)
    for report in reports:
        assert report.all_hold
        assert report.contradicted_at is None and report.bound_holds
        assert report.recursion_violations == 0
        low, high = report.intervals
        assert np.all((low <= report.distances) & (report.distances <= high))
        assert "not contradicted by the samples (99 % intervals" in report.summary()
        assert "broken" not in report.summary()


@pytest.mark.parametrize("noise", [1e-4, 1.0])
def test_samples_contradict_what_is_wrong(noise):
    problem, masks, start = counterexample()
    report = study_convergence(problem, masks, [5e-4] * 40, start, noise=noise, repeats=20)
    assert report.stated_hold and not report.all_hold
    assert not report.bound_holds
    assert report.contradicted_at == 1
    assert report.recursion_violations == 40
    low, high = (ends[1] for ends in report.intervals)
    assert report.bounds[1] < low < high
    words = f"at step 1 the 99 % interval of the mean is {low:.6g} to {high:.6g}, the bound"
    assert f"contradicted by the samples ({words}" in report.summary()
    assert report.to_json()["intervals"]["level"] == 0.99


def test_one_repetition_says_nothing_about_a_mean():
    report = noisy(0, 1)
    assert report.bound_holds and report.recursion_violations == 0
    assert "one repetition says nothing about a mean" in report.summary()
    assert report.to_json()["intervals"] is None


def test_intervals_hold_together():
    """Of 50 means at once, all but about one in a hundred times; skewed values, known means."""
    from reproduction.theory.trajectory import mean_intervals

    random, wrong = np.random.default_rng(0), 0
    for _ in range(500):
        low, _ = mean_intervals(random.chisquare(3, size=(8, 50)))
        wrong += bool((low > 3).any())
    assert wrong <= 10


@pytest.mark.parametrize("step", [5e-4, 5e-5, 5e-6])
def test_the_counterexample_breaks_the_bound_however_small_the_step(step):
    problem, masks, start = counterexample()
    report = study_convergence(problem, masks, [step] * 40, start)
    assert report.stated_hold
    assert not report.bound_holds
    assert report.recursion_violations == 40
    failing = [condition.name for condition in report.conditions if not condition.holds]
    assert failing == ["7 every client descends to W*"]
    assert report.distances[-1] > report.distances[0]
    assert "it is broken" in report.summary()


def test_all_train_everything_is_gradient_descent():
    problem = example_problem("quadratic", num_clients=3, dimension=4, heterogeneity=0.5)
    start = np.ones(4)
    run = static_partial_training(problem, np.ones((3, 4), dtype=bool), [0.1] * 5, start)
    point = start
    for _ in range(5):
        point = point - 0.1 * problem.weights @ problem.gradients(np.tile(point, (3, 1)))
    assert run.distances[-1] == pytest.approx(float(np.sum((point - problem.optimum) ** 2)))
    assert run.alignments == pytest.approx(1.0)


def test_failing_conditions_are_told_with_their_step():
    problem = example_problem("quadratic", heterogeneity=0.05)
    masks = rotating_masks(problem.dimension, [0.5] * 6)
    report = study_convergence(problem, masks, [0.05] * 300, problem.optimum + 3)
    alignment = next(c for c in report.conditions if c.name.startswith("6"))
    assert not alignment.holds
    assert 50 < alignment.first_failure < 300
    assert f"fails first at step {alignment.first_failure}" in alignment.detail
    assert report.bounds is None
    assert "no bound" in report.summary()


def test_steps_too_long_are_told():
    problem = example_problem("quadratic")
    masks = rotating_masks(problem.dimension, [0.5] * 6)
    report = study_convergence(problem, masks, [0.9 / problem.smoothness] * 2, problem.optimum + 3)
    names = {condition.name[:2] for condition in report.conditions if not condition.holds}
    assert "11" in names
    assert "10" not in names
