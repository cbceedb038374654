"""The weight of each client, from its examples (up to a cap) and its sampling probability.

Weights follow from what the server knows, never from what an update reports. Self-reported numbers
of examples are capped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", int, float)
MAX_CLAIMED_FACTOR = 10
"""A client counts as at most this many times the median of all."""


def update_weights(
    num_examples: NDArray[np.int64], *, equal: bool, max_examples: int | None
) -> NDArray[np.int64]:
    """The weight of each client's update: its examples up to a maximum, or 1 for all."""
    if equal:
        return np.ones_like(num_examples)
    return num_examples if max_examples is None else np.minimum(num_examples, max_examples)


def over_probabilities(
    weights: NDArray[np.int64], probabilities: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Each weight divided by the client's probability to be chosen; 0 if that is 0."""
    result = np.zeros(len(weights))
    return np.divide(weights, probabilities, out=result, where=probabilities > 0)


def claim_cap(numbers: Sequence[Number]) -> Number:
    """The cap of self-reported example counts.

    Relative to the lower median: of two clients, the larger claim is bounded by the other.

    >>> claim_cap([100, 120, 10**12])
    1200
    >>> claim_cap([100, 10**12])
    1000
    """
    return MAX_CLAIMED_FACTOR * sorted(numbers)[(len(numbers) - 1) // 2]


def claim_factors(numbers: Sequence[float]) -> NDArray[np.float64]:
    """Factors that reduce each number to at most :func:`claim_cap`; 1 for smaller ones."""
    most = claim_cap(numbers)
    return np.array([min(1.0, most / number) if most and number else 1.0 for number in numbers])
