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


def masked_alignments(
    gradients: NDArray[np.float64], masks: NDArray[np.bool_], offsets: NDArray[np.float64]
) -> NDArray[np.float64]:
    r"""Masked alignment :math:`\rho_k`: masked over whole descent towards the optimum, by client.

    Arguments are (clients, dimension); NaN where a gradient is orthogonal to the offset.

    >>> gradient, mask = np.array([[3.0, 4.0]]), np.array([[True, False]])
    >>> masked_alignments(gradient, mask, np.array([[1.0, 1.0]]))
    array([0.42857143])
    """
    whole = np.einsum("ki,ki->k", gradients, offsets)
    masked = np.einsum("ki,ki->k", np.where(masks, gradients, 0.0), offsets)
    unknown = np.full_like(whole, np.nan)
    return np.asarray(np.divide(masked, whole, out=unknown, where=whole != 0))
