"""Example problems for the theory, and a stored counterexample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import FedpltError, did_you_mean
from fedplt.seeds import generator
from reproduction.theory.problems import Problem, Quadratics, RidgeLogistic, Vector

KINDS = ("quadratic", "logistic")


def example_problem(
    kind: str,
    *,
    num_clients: int = 6,
    dimension: int = 12,
    heterogeneity: float = 0.0,
    seed: int = 0,
) -> Problem:
    """A random problem. At heterogeneity 0 all clients share the optimum (quadratic), or draw
    their examples from one distribution (logistic)."""
    if kind not in KINDS:
        raise FedpltError(f"there is no problem {kind!r}. {did_you_mean(kind, KINDS)}")
    if num_clients < 1 or dimension < 1 or heterogeneity < 0:
        raise FedpltError("clients and dimension are at least 1, heterogeneity at least 0.")
    random = generator(seed, "theory-problem")
    if kind == "quadratic":
        return random_quadratics(random, num_clients, dimension, heterogeneity)
    truth = random.normal(size=dimension)
    features, labels = [], []
    for _ in range(num_clients):
        x = random.normal(size=(40 + int(random.integers(40)), dimension))
        x += heterogeneity * random.normal(size=dimension)
        own = truth + heterogeneity * random.normal(size=dimension)
        chance = 1 / (1 + np.exp(-x @ own))
        features.append(x)
        labels.append(np.where(random.random(len(x)) < chance, 1.0, -1.0))
    return RidgeLogistic(features, labels, ridge=0.1)


def random_quadratics(
    random: np.random.Generator,
    num_clients: int,
    dimension: int,
    heterogeneity: float = 0.0,
    coupling: float = 0.1,
) -> Quadratics:
    """Curvatures between 1 and 2 with some coupling of coordinates, optima near one another."""
    hessians = []
    for _ in range(num_clients):
        mixed = random.normal(size=(dimension, dimension)) * coupling / np.sqrt(dimension)
        hessians.append(np.diag(random.uniform(1, 2, dimension)) + mixed @ mixed.T)
    centers = heterogeneity * random.normal(size=(num_clients, dimension))
    numbers = random.integers(20, 200, num_clients).astype(np.float64)
    return Quadratics(np.array(hessians), centers, numbers / numbers.sum())


def counterexample() -> tuple[Quadratics, NDArray[np.bool_], Vector]:
    """A problem, masks and a start for which every stated assumption holds but the bound fails.

    Two quadratics in two dimensions; each client trains one coordinate. Near the start, the first
    client's gradient step leads away from the common optimum. Its mask keeps (and magnifies) that
    direction, so its alignment is positive, but the strong-convexity inequality must not be
    multiplied by it: the model moves away from W*, however small the step (try 0.0005).
    """
    hessians = np.array([[[3.0, -1.0], [-1.0, 4.0]], [[2.0, 0.0], [0.0, 2.0]]])
    centers = np.array([[-2.0, 2.0], [-3.0, -2.0]])
    masks = np.array([[True, False], [False, True]])
    return Quadratics(hessians, centers, np.array([0.5, 0.5])), masks, np.array([-3.0, 0.0])
