r"""Quantiles of Student's t and of the F distribution, without scipy.

Both follow from the regularized incomplete beta function :math:`I_x(a, b)`, which is evaluated by
its continued fraction (Numerical Recipes, 6.4) and inverted by bisection. The tests compare all
three with scipy.
"""

from __future__ import annotations

import math

_TINY = 1e-300
_STEPS = 200


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function, the distribution function of Beta(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below this point
        return 1 - incomplete_beta(b, a, 1 - x)
    log_factor = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    factor = math.exp(log_factor + a * math.log(x) + b * math.log1p(-x))
    return factor / a * _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction by Lentz's method."""
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _nonzero(1 + term * d)
            c = _nonzero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


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


def f_quantile(probability: float, above: int, below: int) -> float:
    """Quantile of the F distribution with ``above`` and ``below`` degrees of freedom.

    >>> round(f_quantile(0.975, 2, 2), 2)
    39.0
    """
    x = beta_quantile(probability, above / 2, below / 2)
    return below * x / (above * (1 - x))
