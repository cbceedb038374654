"""Tests over a few seeds: rank correlation, trend, ratio of spreads.

Everything here is for samples of two to ten values. Standard deviations are sample ones
(``n - 1``), intervals are 95 % intervals that assume normally distributed values, and the test
for a trend is exact.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from fedplt.comparison import CONFIDENCE, Interval, beta_quantile, spread

MAX_RANKED = 8
"""The exact test enumerates all orders: 8! is 40,320."""


def f_quantile(probability: float, above: int, below: int) -> float:
    """Quantile of the F distribution with ``above`` and ``below`` degrees of freedom.

    >>> round(f_quantile(0.975, 2, 2), 2)
    39.0
    """
    x = beta_quantile(probability, above / 2, below / 2)
    return below * x / (above * (1 - x))


def std_ratio(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Ratio of two standard deviations with its F interval; None if the second is 0.

    The interval assumes that the two samples are independent.
    """
    first, second = spread(above), spread(below)
    number = min(first.number, second.number)
    if first.std is None or second.std is None or second.std == 0:
        return None
    ratio = first.std / second.std
    tail = (1 + CONFIDENCE) / 2
    low = ratio / math.sqrt(f_quantile(tail, first.number - 1, second.number - 1))
    high = ratio * math.sqrt(f_quantile(tail, second.number - 1, first.number - 1))
    return Interval(ratio, low, high, number)


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of theirs.

    >>> ranks([0.3, 0.1, 0.3]).tolist()
    [2.5, 1.0, 2.5]
    """
    array = np.asarray(values, dtype=np.float64)
    below = (array[:, None] > array).sum(axis=1)
    equal = (array[:, None] == array).sum(axis=1)
    result: NDArray[np.float64] = below + (equal + 1) / 2
    return result


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; NaN if all values of one side are equal.

    >>> spearman([1, 2, 3, 4], [10, 30, 20, 40])
    0.8
    """
    a, b = (ranks(values) - (len(values) + 1) / 2 for values in (first, second))
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else math.nan


@dataclass(frozen=True)
class Trend:
    """Rank correlation within each seed, with exact one-sided p values."""

    correlation: float
    """Mean correlation over the seeds."""
    p_falling: float
    """Probability of a correlation at most this high if all orders are equally likely."""
    p_rising: float
    num_values: int
    num_seeds: int


def trend(order: Sequence[float], rows: Sequence[Sequence[float]]) -> Trend:
    """Test whether values rise or fall with ``order``: Page's exact test, one row per seed.

    Only orders within a seed are compared, so differences between seeds do not matter.

    >>> trend([1, 2, 3], [[0.9, 0.8, 0.7], [0.5, 0.4, 0.3]])
    Trend(correlation=-1.0, p_falling=0.027..., p_rising=1.0, num_values=3, num_seeds=2)
    """
    assert 1 < len(order) <= MAX_RANKED
    position = ranks(order)
    observed, chance = 0.0, {0.0: 1.0}
    for row in rows:
        values = ranks(row)
        observed += float(position @ values)
        single = Counter(float(position @ np.array(p)) for p in permutations(values))
        total = math.factorial(len(values))
        joint: defaultdict[float, float] = defaultdict(float)
        for s, p in chance.items():  # sums of ranks are multiples of 1/4: exact as keys
            for t, count in single.items():
                joint[s + t] += p * count / total
        chance = joint
    return Trend(
        fmean(spearman(order, row) for row in rows),
        min(1.0, math.fsum(p for s, p in chance.items() if s <= observed)),
        min(1.0, math.fsum(p for s, p in chance.items() if s >= observed)),
        len(order),
        len(rows),
    )
