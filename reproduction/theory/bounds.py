r"""The paper's convergence bound and its corollaries (section V and appendix), as corrected.

.. math:: D^{t+1} \le (1 - z\eta^t) D^t + (\eta^t)^2 B, \qquad D^t = E\|W^t - W^*\|^2

``t`` counts local steps: the proof follows the (virtual) average of the clients' models from one
local step to the next. With one local step per round these are the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import FedpltError


@dataclass(frozen=True)
class Constants:
    r"""The constants of the bound; the paper's letters in brackets."""

    smoothness: float
    """(L)"""
    strong_convexity: float
    """(mu)"""
    alignment: float
    """Smallest masked alignment of all clients and steps (rho)."""
    gradient_bound: float
    """Largest norm of a local gradient on the trajectory (G)."""
    noise: float
    """Standard deviation of stochastic gradients (sigma)."""
    local_steps: int
    """(tau)"""
    masking: float
    r"""(Gamma) :math:`\sum_k c_k \alpha_{r_k}^2`"""
    heterogeneity: float
    r"""(Lambda) :math:`F^* - \sum_k c_k F_k^*`"""
    nu: float
    r"""(nu) :math:`\max_{t,k} 2\alpha_{r_k}^2 (1 - \eta^t L) + \rho`"""

    @property
    def contraction(self) -> float:
        r""":math:`z = \mu\rho`."""
        return self.strong_convexity * self.alignment

    @property
    def residual(self) -> float:
        r""":math:`B = 2\tau^2 (G^2 + \sigma^2)\Gamma + 2L\nu\Lambda + \sigma^2\Gamma`."""
        gradients = self.gradient_bound**2 + self.noise**2
        return (
            2 * self.local_steps**2 * gradients * self.masking
            + 2 * self.smoothness * self.nu * self.heterogeneity
            + self.noise**2 * self.masking
        )


def masking_factor(num_trained: int) -> float:
    r"""The paper's :math:`\alpha_r = \min(1, \sqrt{d r})`; :math:`d r` is the number of trained
    coordinates, so this is 1 for every client that trains anything.

    >>> masking_factor(1), masking_factor(0)
    (1.0, 0.0)
    """
    return min(1.0, math.sqrt(num_trained))


def finite_horizon_bound(
    start: float, contraction: float, residual: float, step_sizes: Sequence[float]
) -> NDArray[np.float64]:
    r"""The recursion unrolled: bounds on :math:`D^0, D^1, \dots, D^T` (the paper's theorem).

    Equals :math:`\prod_t (1 - z\eta^t) D^0 + B \sum_t (\eta^t)^2 \prod_{s>t} (1 - z\eta^s)`.

    >>> finite_horizon_bound(1.0, 1.0, 0.5, [0.5, 0.5]).tolist()
    [1.0, 0.625, 0.4375]
    """
    bounds = [start]
    for step in step_sizes:
        if not 0 < contraction * step <= 1:
            raise FedpltError(
                f"step size {step:g} times z = {contraction:g} is {contraction * step:g}; the "
                "recursion can be unrolled only if it lies in (0, 1]."
            )
        bounds.append((1 - contraction * step) * bounds[-1] + step**2 * residual)
    return np.array(bounds)


def constant_step_bound(
    start: float, contraction: float, residual: float, step_size: float, steps: int
) -> float:
    r"""Corollary: :math:`(1 - z\eta)^t D^0 + \eta B / z`.

    >>> constant_step_bound(1.0, 1.0, 0.5, 0.5, 2)
    0.5
    """
    return (1 - contraction * step_size) ** steps * start + step_size * residual / contraction


def decaying_step_sizes(contraction: float, steps: int) -> NDArray[np.float64]:
    r""":math:`\eta^t = 1 / (z (t + 1))`."""
    return np.asarray(1 / (contraction * np.arange(1, steps + 1)))


def decaying_step_bound(contraction: float, residual: float, steps: int) -> float:
    r"""What the recursion gives for :func:`decaying_step_sizes`: :math:`B H_t / (z^2 t)`.

    :math:`H_t = 1 + 1/2 + \dots + 1/t`. The paper claims :math:`O(1/t)`, but its induction fails
    (it needs :math:`C \ge (t + 2) B / z^2` for all t): the recursion itself goes as
    :math:`\log t / t`. :func:`faster_step_sizes` do reach :math:`O(1/t)`.

    >>> decaying_step_bound(1.0, 1.0, 2)
    0.75
    """
    harmonic = math.fsum(1 / t for t in range(1, steps + 1))
    return residual * harmonic / (contraction**2 * steps)


def faster_step_sizes(contraction: float, steps: int) -> NDArray[np.float64]:
    r""":math:`\eta^t = 2 / (z (t + 2))`, for which the recursion gives
    :math:`D^t \le 4B / (z^2 (t + 2))`, t at least 1."""
    return np.asarray(2 / (contraction * np.arange(2, steps + 2)))


def faster_step_bound(contraction: float, residual: float, steps: int) -> float:
    """The bound for :func:`faster_step_sizes`.

    >>> faster_step_bound(1.0, 1.0, 2)
    1.0
    """
    return 4 * residual / (contraction**2 * (steps + 2))


@dataclass(frozen=True)
class Alignment:
    r"""The masked alignment of one client at one point, and the angles it is computed from.

    Cosines, not angles: :math:`\theta_1` between gradient and :math:`W - W^*`,
    :math:`\theta_2` between masked gradient and :math:`W - W^*`, :math:`\theta_3` between the two
    gradients.
    """

    rho: float
    cos_full: float
    cos_masked: float
    cos_between: float


def masked_alignment(
    gradient: NDArray[np.float64], mask: NDArray[np.bool_], offset: NDArray[np.float64]
) -> Alignment:
    """The alignment for a gradient, a mask and the offset from the optimum.

    NaN if the gradient is orthogonal to the offset.

    >>> gradient, mask = np.array([3.0, 4.0]), np.array([True, False])
    >>> masked_alignment(gradient, mask, np.array([1.0, 1.0])).rho
    0.42857142857142855
    """
    masked = np.where(mask, gradient, 0.0)
    whole = float(gradient @ offset)
    rho = float(masked @ offset) / whole if whole else math.nan
    return Alignment(rho, _cos(gradient, offset), _cos(masked, offset), _cos(masked, gradient))


def masked_alignments(
    gradients: NDArray[np.float64], masks: NDArray[np.bool_], offsets: NDArray[np.float64]
) -> NDArray[np.float64]:
    """:attr:`Alignment.rho` of all clients at once; arguments are (clients, dimension)."""
    whole = np.einsum("ki,ki->k", gradients, offsets)
    masked = np.einsum("ki,ki->k", np.where(masks, gradients, 0.0), offsets)
    unknown = np.full_like(whole, np.nan)
    return np.asarray(np.divide(masked, whole, out=unknown, where=whole != 0))


def _cos(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else math.nan
