"""Constants are exact: checked against finite differences and by pushing against them."""

from __future__ import annotations

import numpy as np
import pytest

from fedplt.errors import FedpltError
from reproduction.theory import Quadratics, RidgeLogistic, example_problem


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
def test_gradients_and_optimum(kind):
    problem = example_problem(kind, num_clients=3, dimension=4, heterogeneity=0.3, seed=1)
    random = np.random.default_rng(0)
    points = random.normal(size=(3, 4))
    for axis in range(4):
        step = np.zeros(4)
        step[axis] = 1e-6
        slopes = (problem.losses(points + step) - problem.losses(points - step)) / 2e-6
        assert problem.gradients(points)[:, axis] == pytest.approx(slopes, abs=1e-6)
    everywhere = np.tile(problem.optimum, (3, 1))
    assert np.linalg.norm(problem.weights @ problem.gradients(everywhere)) < 1e-10
    assert (problem.losses(points) >= problem.local_minima).all()
    best = problem.weights @ problem.losses(everywhere)
    assert best >= problem.weights @ problem.local_minima


def test_quadratic_constants_are_eigenvalues():
    hessians = np.array([np.diag([1.0, 5.0]), np.diag([0.5, 2.0])])
    problem = Quadratics(hessians, np.zeros((2, 2)), np.array([0.25, 0.75]))
    assert (problem.smoothness, problem.strong_convexity) == (5.0, 0.5)
    with pytest.raises(FedpltError, match="positive definite"):
        Quadratics(-hessians, np.zeros((2, 2)), np.array([0.25, 0.75]))
    with pytest.raises(FedpltError, match="add up to 1"):
        Quadratics(hessians, np.zeros((2, 2)), np.array([0.25, 0.25]))


def test_logistic_smoothness_is_reached_where_the_curve_is_steepest():
    """At W = 0 the logistic curvature is 1/4 everywhere, so L is the Hessian's largest there."""
    problem = example_problem("logistic", num_clients=1, dimension=3)
    assert isinstance(problem, RidgeLogistic)
    x = problem.features[0]
    hessian = x.T @ x / (4 * len(x)) + problem.ridge * np.eye(3)
    assert problem.smoothness == pytest.approx(np.linalg.eigvalsh(hessian).max())
    with pytest.raises(FedpltError, match="ridge"):
        RidgeLogistic(problem.features, problem.labels, 0.0)


def test_unknown_problems():
    with pytest.raises(FedpltError, match="Did you mean 'logistic'"):
        example_problem("logistics")
