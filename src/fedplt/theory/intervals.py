"""What repetitions say about an expectation."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedplt.distributions import t_quantile
from fedplt.theory.problems import Matrix, Vector

CONFIDENCE = 0.99
"""All intervals of a call hold together at this level."""


class MeanIntervals(NamedTuple):
    """Intervals of the expectations, (steps,); infinite where one repetition says nothing."""

    low: Vector
    high: Vector


def mean_intervals(samples: Matrix) -> MeanIntervals:
    r"""Student's intervals :math:`\bar x \pm t\, s / \sqrt n` of ``samples`` (repetitions, steps).

    They share the error of 1 % (Bonferroni), because a bound is broken where any step breaks it.
    Squared distances are skewed to the right, which makes the lower ends, the ones that
    contradict a bound, cautious.

    >>> mean_intervals(np.array([[1.0, 4.0], [1.0, 6.0], [1.0, 5.0]])).low.round(2).tolist()
    [1.0, -3.13]
    """
    number, steps = samples.shape
    mean = samples.mean(axis=0)
    if number == 1:
        return MeanIntervals(np.full(steps, -math.inf), np.full(steps, math.inf))
    t = t_quantile(1 - (1 - CONFIDENCE) / (2 * steps), number - 1)
    half = t * samples.std(axis=0, ddof=1) / math.sqrt(number)
    return MeanIntervals(mean - half, mean + half)
