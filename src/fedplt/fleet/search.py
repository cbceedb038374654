"""Search for the largest ratio that fits, between the knots of a workload."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedplt.fleet.plan import in_time


def crossing(knots: NDArray[np.float64], values: Sequence[float], limit: float) -> float:
    """The largest ratio whose value, linear between the knots, is within the limit; 0: none.

    Values may fall, with whole sub-layers: then the last crossing counts.

    >>> crossing(np.array([0.0, 1.0]), [2.0, 6.0], 3.0)
    0.25
    >>> crossing(np.array([0.0, 0.5, 1.0]), [2.0, 4.0, 3.0], 3.0)
    1.0
    """
    if in_time(values[-1], limit):
        return float(knots[-1])
    least = np.minimum.accumulate(values[::-1])[::-1].tolist()
    above = bisect_right(least, limit)
    if above == 0:
        return 0.0
    low, high = least[above - 1], least[above]
    share = (limit - low) / (high - low)
    return float(knots[above - 1] + share * (knots[above] - knots[above - 1]))


def largest_fitting(
    knots: NDArray[np.float64], guess: float, fits: Callable[[float], bool]
) -> float:
    """The largest ratio found that fits; 0: none.

    With whole sub-layers a larger ratio may fit where a smaller one does not. The search tries the
    knot above the guess, the guess and the knots below, then halves the gap above the first hit.
    """
    tried = [*knots[knots > guess][:1], guess, *knots[knots < guess][::-1]]
    too_large = math.inf
    for ratio in map(float, tried):
        if ratio > 0 and fits(ratio):
            break
        too_large = ratio
    else:
        return 0.0
    for _ in range(6 if too_large < math.inf else 0):
        middle = (ratio + too_large) / 2
        ratio, too_large = (middle, too_large) if fits(middle) else (ratio, middle)
    return ratio
