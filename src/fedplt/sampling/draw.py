"""Draw the clients of a round."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedplt.seeds import generator


def uniform_sample(num_clients: int, number: int, *, seed: int, round: int) -> NDArray[np.int64]:
    """``number`` different clients, all equally likely, in ascending order.

    >>> uniform_sample(5, 5, seed=0, round=3).tolist()
    [0, 1, 2, 3, 4]
    """
    chosen = generator(seed, "sampling", round=round).choice(num_clients, number, replace=False)
    return np.sort(chosen)


def independent_sample(probabilities: ArrayLike, *, seed: int, round: int) -> NDArray[np.int64]:
    """Draw each client independently with its own probability; ascending, perhaps empty.

    >>> independent_sample([1.0, 0.0, 1.0], seed=0, round=3).tolist()
    [0, 2]
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    # Coins are in [0, 1): probability 1 is always chosen, probability 0 never.
    coins = generator(seed, "sampling coins", round=round).random(len(probabilities))
    return np.flatnonzero(coins < probabilities)
