"""Who takes part in a round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedplt.seeds import generator


def uniform_sample(num_clients: int, number: int, *, seed: int, round: int) -> NDArray[np.int64]:
    """``number`` different clients, all equally likely, in ascending order.

    >>> uniform_sample(5, 5, seed=0, round=3).tolist()
    [0, 1, 2, 3, 4]
    """
    chosen = generator(seed, "sampling", round=round).choice(num_clients, number, replace=False)
    return np.sort(chosen)
