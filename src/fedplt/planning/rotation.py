"""Where each client's sub-layers start, and how far all clients move on in a rotation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import gcd

import numpy as np
from numpy.typing import NDArray

from fedplt.planning.layers import Ranges


def first_sublayers(counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """Number of sub-layers that the clients before each one train, (clients, layers)."""
    return np.asarray(np.cumsum(counts, axis=0, dtype=np.int64) - counts)


def rotation_steps(counts: NDArray[np.int32], num_sublayers: Sequence[int]) -> NDArray[np.int64]:
    """Per layer, a mean client's share or a little more, coprime to the number of sub-layers.

    So a client gets new sub-layers after each move, and reaches all of them in the end.
    """
    means = (max(1, round(float(mean))) for mean in counts.mean(axis=0))
    pairs = zip(means, num_sublayers, strict=True)
    return np.array([next(s for s in count(mean) if gcd(s, n) == 1) for mean, n in pairs])


def wrapped(start: int, count: int, total: int) -> Ranges:
    """``count`` sub-layers from ``start`` on, wrapping around at ``total``.

    >>> wrapped(6, 4, 8)
    (range(0, 2), range(6, 8))
    """
    if count == total:
        return (range(total),)
    if start + count <= total:
        return (range(start, start + count),) if count else ()
    return (range(start + count - total), range(start, total))
