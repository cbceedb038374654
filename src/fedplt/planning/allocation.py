r"""How a client's training ratio is spread over the layers (paper, section III-D).

Symbols: :math:`h_l` = ``layer_sizes``, :math:`r` = ``ratio``, :math:`Q` = ``layer_ratios``,
:math:`X` = ``contributions``, :math:`E` = ``relative_imbalance``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedplt.errors import PlanError
from fedplt.text import brief


@dataclass(frozen=True)
class Allocation:
    """One way to spread trained parameters over layers of given sizes."""

    layer_sizes: tuple[int, ...]
    layer_ratios: tuple[float, ...]

    __repr__ = brief

    @property
    def ratio(self) -> float:
        r"""Trained fraction of the model, :math:`r = \sum_l q_l h_l / \sum_l h_l`."""
        return math.fsum(self._trained) / sum(self.layer_sizes)

    @property
    def contributions(self) -> tuple[float, ...]:
        r"""Share of each layer in what is trained, :math:`x_l = q_l h_l / (r \sum_j h_j)`."""
        total = math.fsum(self._trained)
        return tuple(value / total for value in self._trained)

    @property
    def _trained(self) -> list[float]:
        return [q * h for q, h in zip(self.layer_ratios, self.layer_sizes, strict=True)]

    @property
    def contributions_std(self) -> float:
        """Population standard deviation of the contributions."""
        return float(np.std(self.contributions))

    @property
    def relative_imbalance(self) -> float:
        r"""The paper's :math:`E = (J(X) - J(X^*)) / J(X^*)`, as a fraction.

        :math:`X^*` is the most balanced allocation of the same ratio. 0 if the two agree,
        infinite if only :math:`J(X^*)` is 0.

        >>> sizes = [401_920, 131_328, 32_896, 1_290]
        >>> round(allocation_of(sizes, [0.20, 0.45, 0.76, 0.80]).relative_imbalance, 4)
        0.3053
        """
        own = self._imbalance()
        best = balanced_allocation(self.layer_sizes, min(1.0, self.ratio))._imbalance()
        # Rounding leaves differences of about 1e-16 between equal allocations.
        if math.isclose(own, best, rel_tol=1e-9, abs_tol=1e-15):
            return 0.0
        return math.inf if best < 1e-15 else (own - best) / best

    def _imbalance(self) -> float:
        even = 1 / len(self.layer_sizes)
        return 0.5 * math.fsum((x - even) ** 2 for x in self.contributions)


def balanced_allocation(layer_sizes: Sequence[int], ratio: float) -> Allocation:
    r"""Spread a client's training ratio over the layers as evenly as they allow.

    Solves :math:`\min_X \tfrac12\lVert X - \tfrac1L\mathbf 1\rVert^2` subject to
    :math:`\sum_l x_l = 1`, :math:`0 \le x_l \le \bar x_l = h_l / (r \sum_j h_j)`. The solution is
    :math:`x_l = \min(\bar x_l, \tau)` (water-filling); :math:`\tau` is computed in closed form.

    >>> balanced_allocation([401_920, 131_328, 32_896, 1_290], 0.29).layer_ratios
    (0.1621..., 0.4963..., 1.0, 1.0)
    """
    sizes = _checked_sizes(layer_sizes)
    if not 0 < ratio <= 1:
        raise PlanError(f"ratio is {ratio}; a training ratio lies in (0, 1].")
    return Allocation(sizes, tuple(balanced_layer_ratios(sizes, [ratio])[0].tolist()))


def allocation_of(layer_sizes: Sequence[int], layer_ratios: Sequence[float]) -> Allocation:
    """The allocation with the given trained fraction of each layer.

    >>> allocation_of([300, 100], [0.0, 0.5]).ratio
    0.125
    """
    sizes = _checked_sizes(layer_sizes)
    ratios = tuple(float(q) for q in layer_ratios)
    if len(ratios) != len(sizes):
        raise PlanError(
            f"{len(ratios)} layer ratios were given for {len(sizes)} layers; give one per layer."
        )
    for index, q in enumerate(ratios):
        if not 0 <= q <= 1:
            raise PlanError(f"layer_ratios[{index}] is {q}; a layer ratio lies in [0, 1].")
    if not any(ratios):
        raise PlanError("all layer ratios are 0: nothing would be trained. Raise at least one.")
    return Allocation(sizes, ratios)


def balanced_layer_ratios(layer_sizes: Sequence[int], ratios: ArrayLike) -> NDArray[np.float64]:
    """:func:`balanced_allocation` for many ratios at once; one row of layer ratios per ratio."""
    order = np.argsort(layer_sizes, kind="stable")
    sizes = np.asarray(layer_sizes, dtype=np.float64)[order]
    ratio = np.asarray(ratios, dtype=np.float64)
    budget = ratio * sizes.sum()  # parameters to train
    below = np.concatenate([[0.0], np.cumsum(sizes)[:-1]])  # all layers smaller than this one
    # If layers 0..i-1 are trained in full, the others share the rest equally; the solution is the
    # first i whose level does not exceed its layer. Levels are in parameters, not contributions.
    levels = (budget[:, None] - below) / np.arange(len(sizes), 0, -1)  # (ratios, layers)
    fits = levels <= sizes
    fits[:, -1] = True
    level = levels[np.arange(len(ratio)), np.argmax(fits, axis=1)]
    shares = np.minimum(1.0, level[:, None] / sizes)
    shares[ratio >= 1] = 1.0
    result: NDArray[np.float64] = np.empty_like(shares)
    result[:, order] = shares
    return result


def _checked_sizes(layer_sizes: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(int(h) for h in layer_sizes)
    if not sizes or min(sizes) <= 0:
        raise PlanError(f"layer sizes are {list(sizes)}; give at least one, all positive.")
    return sizes
