r"""Strongly convex federated problems whose constants are known exactly.

:math:`F(W) = \sum_k c_k F_k(W)` with :math:`c_k = n_k / n`: the weights of the paper's analysis,
not the block-by-block ones of its algorithm (``docs/errata.md``, 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import FedpltError

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class Problem(Protocol):
    """Local objectives :math:`F_k`, their common constants, and the global optimum."""

    @property
    def weights(self) -> Vector:
        """The clients' :math:`c_k`; they add up to 1."""

    @property
    def dimension(self) -> int: ...

    @property
    def smoothness(self) -> float:
        """The smallest L for which every F_k is L-smooth on the whole space."""

    @property
    def strong_convexity(self) -> float:
        """The largest mu for which every F_k is mu-strongly convex on the whole space."""

    @property
    def optimum(self) -> Vector:
        """The global minimizer W*."""

    @property
    def local_minima(self) -> Vector:
        """Each client's own smallest value, F_k*."""

    def losses(self, points: Matrix) -> Vector:
        """F_k at ``points[k]``, (clients,)."""

    def gradients(self, points: Matrix) -> Matrix:
        """The gradient of F_k at ``points[k]``, (clients, dimension)."""


@dataclass(frozen=True, eq=False)
class Quadratics:
    r""":math:`F_k(W) = \tfrac12 (W - b_k)^\top H_k (W - b_k)`."""

    hessians: NDArray[np.float64]
    """H_k, (clients, dimension, dimension): symmetric, positive definite."""
    centers: Matrix
    """b_k, (clients, dimension)."""
    weights: Vector

    def __post_init__(self) -> None:
        _check_weights(self.weights)
        if self._eigenvalues.min() <= 0:
            raise FedpltError("a Hessian is not positive definite: F_k is not strongly convex.")

    @cached_property
    def _eigenvalues(self) -> Matrix:
        return np.asarray(np.linalg.eigvalsh(self.hessians))

    @property
    def dimension(self) -> int:
        return int(self.centers.shape[1])

    @property
    def smoothness(self) -> float:
        return float(self._eigenvalues.max())

    @property
    def strong_convexity(self) -> float:
        return float(self._eigenvalues.min())

    @cached_property
    def optimum(self) -> Vector:
        total = np.einsum("k,kij->ij", self.weights, self.hessians)
        pull = np.einsum("k,kij,kj->i", self.weights, self.hessians, self.centers)
        return np.asarray(np.linalg.solve(total, pull))

    @property
    def local_minima(self) -> Vector:
        return np.zeros(len(self.weights))

    def losses(self, points: Matrix) -> Vector:
        offsets = points - self.centers
        return np.asarray(0.5 * np.einsum("ki,kij,kj->k", offsets, self.hessians, offsets))

    def gradients(self, points: Matrix) -> Matrix:
        return np.asarray(np.einsum("kij,kj->ki", self.hessians, points - self.centers))


@dataclass(frozen=True, eq=False)
class RidgeLogistic:
    r""":math:`F_k(W) = \frac1{n_k}\sum_i \log(1 + e^{-y_i x_i^\top W}) + \frac\lambda2\|W\|^2`.

    The logistic curvature lies in (0, 1/4], so :math:`L = \max_k \lambda_{\max}(X_k^\top X_k) /
    (4 n_k) + \lambda`, and :math:`\mu = \lambda`: far out the logistic part is flat.
    """

    features: Sequence[Matrix]
    """X_k, (examples of client k, dimension)."""
    labels: Sequence[Vector]
    """-1 or 1."""
    ridge: float

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise FedpltError(f"ridge is {self.ridge}; strong convexity needs more than 0.")

    @property
    def weights(self) -> Vector:
        numbers = np.array([len(labels) for labels in self.labels], dtype=np.float64)
        return np.asarray(numbers / numbers.sum())

    @property
    def dimension(self) -> int:
        return int(self.features[0].shape[1])

    @cached_property
    def smoothness(self) -> float:
        largest = [np.linalg.norm(x, 2) ** 2 / (4 * len(x)) for x in self.features]
        return float(max(largest) + self.ridge)

    @property
    def strong_convexity(self) -> float:
        return self.ridge

    @cached_property
    def optimum(self) -> Vector:
        return self._newton(self.weights)

    @cached_property
    def local_minima(self) -> Vector:
        alone = np.eye(len(self.labels))
        return np.array(
            [self.losses(self._spread(self._newton(c)))[k] for k, c in enumerate(alone)]
        )

    def losses(self, points: Matrix) -> Vector:
        return np.array(
            [
                np.logaddexp(0, -y * (x @ w)).mean() + 0.5 * self.ridge * w @ w
                for x, y, w in zip(self.features, self.labels, points, strict=True)
            ]
        )

    def gradients(self, points: Matrix) -> Matrix:
        return np.array(
            [
                -(x.T @ (y * _falling(y * (x @ w)))) / len(y) + self.ridge * w
                for x, y, w in zip(self.features, self.labels, points, strict=True)
            ]
        )

    def _spread(self, point: Vector) -> Matrix:
        return np.broadcast_to(point, (len(self.labels), len(point)))

    def _newton(self, weights: Vector) -> Vector:
        """The minimizer of the weighted sum, to rounding error (damped Newton steps)."""
        point = np.zeros(self.dimension)
        for _ in range(100):
            gradient = weights @ self.gradients(self._spread(point))
            hessian = self.ridge * np.eye(self.dimension)
            for weight, x, y in zip(weights, self.features, self.labels, strict=True):
                chance = _falling(y * (x @ point))
                hessian += weight * (x.T * (chance * (1 - chance))) @ x / len(y)
            step = np.linalg.solve(hessian, gradient)
            value, size = weights @ self.losses(self._spread(point)), 1.0
            while size > 1e-8 and weights @ self.losses(self._spread(point - size * step)) > value:
                size /= 2
            point = point - size * step
            if np.linalg.norm(step) < 1e-13:
                break
        return point


def _falling(margin: Vector) -> Vector:
    """1 / (1 + exp(margin)), without overflow."""
    return np.asarray(0.5 * (1 - np.tanh(margin / 2)))


def _check_weights(weights: Vector) -> None:
    if weights.min() <= 0 or not np.isclose(weights.sum(), 1):
        raise FedpltError("the clients' weights must be positive and add up to 1.")
