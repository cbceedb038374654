"""Find the width rate or keep rate whose sub-model has a client's ratio."""

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
    """Per client, the width rate whose sub-model is closest to its ratio (ties: the smaller).

    Tries the allowed rates; by default, all rates at which some layer gains a unit.
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
    """Mean number of parameters of a sub-model whose units are each kept with this probability.

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
    """Per client, the keep rate whose sub-model has its ratio on average, by bisection.

    The widest space keeps at least one unit on average: a smaller rate would hardly change the
    size, and activations are divided by the rate.
    """
    low, high = np.zeros(len(ratios)), np.ones(len(ratios))
    for _ in range(60):
        middle = (low + high) / 2
        small = expected_sizes(layers, spaces, middle) < ratios * layers.size
        low, high = np.where(small, middle, low), np.where(small, high, middle)
    least = 1 / max(spaces.widths, default=1)
    return np.where(ratios >= 1, 1.0, np.maximum(high, least))
