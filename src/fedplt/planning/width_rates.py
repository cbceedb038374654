"""The knobs of sub-model methods: which width or keep rate has a client's ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedplt.planning.coupled_units import Spaces
from fedplt.planning.layers import Layers

_NEGLIGIBLE = 1e-9


def kept_units(width: int, rate: float) -> int:
    r"""Units that a width rate keeps: :math:`\lceil K s \rceil`, at least 1.

    >>> kept_units(16, 0.25), kept_units(10, 0.25)
    (4, 3)
    """
    return max(1, min(width, math.ceil(width * rate - _NEGLIGIBLE)))


def closest_rates(
    layers: Layers, spaces: Spaces, ratios: NDArray[np.float64], allowed: Sequence[float] | None
) -> NDArray[np.float64]:
    """The width rate of every client whose sub-model comes closest to its ratio (ties: smaller).

    All rates at which some layer gets another unit are tried, or the allowed ones.
    """
    rates = {round(i / width, 12) for width in spaces.widths for i in range(1, width + 1)}
    candidates = np.array(sorted(allowed or rates or {1.0}))
    kept = np.array([[kept_units(w, s) for w in spaces.widths] for s in candidates], dtype=float)
    sizes = spaces.num_parameters(layers, kept, squares=kept**2)
    distinct, inverse = np.unique(ratios, return_inverse=True)
    errors = np.abs(sizes[None, :] - distinct[:, None] * layers.size)
    return np.asarray(candidates[np.argmin(errors, axis=1)][inverse.reshape(-1)])


def expected_sizes(
    layers: Layers, spaces: Spaces, keep_rates: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean parameters of a sub-model whose units are each kept with this probability.

    A space that would be empty keeps one unit.
    """
    widths = np.asarray(spaces.widths, dtype=float)
    rates = keep_rates[:, None]
    empty = (1 - rates) ** widths
    mean = widths * rates + empty
    squares = widths * rates * (1 - rates) + (widths * rates) ** 2 + empty
    return spaces.num_parameters(layers, mean, squares=squares)


def expected_keep_rates(
    layers: Layers, spaces: Spaces, ratios: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The probability of every client whose mean sub-model has its ratio, by bisection.

    At least one unit of the widest space is kept on average: less changes the size hardly, and
    activations are divided by this number.
    """
    low, high = np.zeros(len(ratios)), np.ones(len(ratios))
    for _ in range(60):
        middle = (low + high) / 2
        small = expected_sizes(layers, spaces, middle) < ratios * layers.size
        low, high = np.where(small, middle, low), np.where(small, high, middle)
    least = 1 / max(spaces.widths, default=1)
    return np.where(ratios >= 1, 1.0, np.maximum(high, least))
