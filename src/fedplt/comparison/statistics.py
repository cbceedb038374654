r"""Mean, spread and intervals over a few seeds, without scipy.

Student's t follows from the regularized incomplete beta function :math:`I_x(a, b)`, which is
summed as a series (Abramowitz and Stegun, 26.5.4) and inverted by bisection. The tests compare
both with scipy. Standard deviations are sample ones (``n - 1``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95
_STEPS = 200


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function, the distribution function of Beta(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # below this point every term of the series is smaller
        return 1 - incomplete_beta(b, a, 1 - x)
    log_factor = math.lgamma(a + b) - math.lgamma(a + 1) - math.lgamma(b)
    factor = math.exp(log_factor + a * math.log(x) + b * math.log1p(-x))
    term = total = 1.0
    n = 0
    while term > 1e-17 * total:
        term *= x * (a + b + n) / (a + 1 + n)
        total += term
        n += 1
    return factor * total


def beta_quantile(probability: float, a: float, b: float) -> float:
    """The x at which :func:`incomplete_beta` has this value."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):  # enough to shrink the interval to one float
        middle = (low + high) / 2
        if incomplete_beta(a, b, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_quantile(probability: float, degrees: int) -> float:
    """Student's t: the value that is exceeded with probability ``1 - probability``.

    >>> round(t_quantile(0.975, 2), 4), round(t_quantile(0.975, 4), 4)
    (4.3027, 2.7764)
    """
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    x = beta_quantile(2 * (1 - probability), degrees / 2, 0.5)
    return math.sqrt(degrees * (1 - x) / x)


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (None for a single value)."""

    mean: float
    std: float | None
    number: int


def spread(values: Sequence[float]) -> Spread:
    """
    >>> spread([1.0, 2.0, 4.5])
    Spread(mean=2.5, std=1.802..., number=3)
    """
    std = stdev(values) if len(values) > 1 else None
    return Spread(fmean(values), std, len(values))


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval; the ends are None for a single value."""

    estimate: float
    low: float | None
    high: float | None
    number: int


def mean_interval(values: Sequence[float]) -> Interval:
    r"""Student's interval of a mean, :math:`\bar x \pm t_{0.975,\,n-1}\, s / \sqrt n`.

    Given the differences of runs with the same seed it is the paired interval.

    >>> mean_interval([1.0, 2.0, 3.0])
    Interval(estimate=2.0, low=-0.484..., high=4.484..., number=3)
    """
    found = spread(values)
    if found.std is None:
        return Interval(found.mean, None, None, found.number)
    t = t_quantile((1 + CONFIDENCE) / 2, found.number - 1)
    half = t * found.std / math.sqrt(found.number)
    return Interval(found.mean, found.mean - half, found.mean + half, found.number)
