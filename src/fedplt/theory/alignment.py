r"""Masked alignment: how much of a gradient's progress survives a mask (paper, appendix).

.. math:: \rho_k = \frac{\langle m_k \odot \nabla F_k(W), W - W^*\rangle}
                        {\langle \nabla F_k(W), W - W^*\rangle}
                 = \frac{\cos\theta_3 \cos\theta_2}{\cos\theta_1}
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
