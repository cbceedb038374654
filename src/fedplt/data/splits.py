"""Split the training examples among the clients.

=============  ====================================================================
``iid``        every client gets the same mix and nearly the same number
``dirichlet``  label skew: each class is spread by Dirichlet(alpha) proportions
``shards``     each client gets a few shards of the examples sorted by label
``given``      the user's list of index arrays
=============  ====================================================================
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import length_hint

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedplt.errors import DataError
from fedplt.seeds import generator

MAX_ALPHA = 1e6


@dataclass(frozen=True, eq=False)
class Split:
    """Client k owns examples ``order[offsets[k] : offsets[k + 1]]``."""

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_examples(self) -> NDArray[np.int64]:
        """Examples per client."""
        return np.diff(self.offsets)

    def client(self, client: int) -> NDArray[np.int64]:
        return self.order[self.offsets[client] : self.offsets[client + 1]]


def split_iid(num_examples: int, num_clients: int, *, seed: int = 0) -> Split:
    """Shuffle, then cut into parts whose sizes differ by at most one."""
    _check_enough(num_examples, num_clients, 1)
    order = generator(seed, "split").permutation(num_examples)
    return _in_pieces(np.array_split(order, num_clients))


def split_dirichlet(
    labels: ArrayLike, num_clients: int, *, alpha: float, min_examples: int = 1, seed: int = 0
) -> Split:
    """Spread each class over the clients by proportions drawn from Dirichlet(alpha).

    An alpha of 0.1 is very skewed, 100 is even. Clients with fewer than ``min_examples`` get random
    examples of the clients that have the most.
    """
    labels = np.asarray(labels)
    if not 0 < alpha <= MAX_ALPHA:
        raise DataError(f"alpha is {alpha}; it must be above 0 and at most {MAX_ALPHA:g}.")
    _check_enough(len(labels), num_clients, min_examples)
    random = generator(seed, "split")
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        examples = random.permutation(np.flatnonzero(labels == label))
        proportions = random.dirichlet(np.full(num_clients, alpha))
        ends = np.floor(np.cumsum(proportions)[:-1] * len(examples)).astype(np.int64)
        owner[examples] = np.searchsorted(ends, np.arange(len(examples)), side="right")
    owner = _topped_up(owner, num_clients, min_examples, random)
    counts = np.bincount(owner, minlength=num_clients)
    return Split(np.argsort(owner, kind="stable"), np.concatenate([[0], np.cumsum(counts)]))


def split_shards(
    labels: ArrayLike, num_clients: int, *, shards_per_client: int = 2, seed: int = 0
) -> Split:
    """Sort by label, cut into equal shards, deal ``shards_per_client`` to each client."""
    labels = np.asarray(labels)
    _check_enough(len(labels), num_clients, shards_per_client)
    shards = np.array_split(np.argsort(labels, kind="stable"), num_clients * shards_per_client)
    dealt = generator(seed, "split").permutation(len(shards))
    hands = dealt.reshape(num_clients, shards_per_client)
    return _in_pieces([np.concatenate([shards[shard] for shard in hand]) for hand in hands])


def split_given(indices: Sequence[ArrayLike], num_examples: int) -> Split:
    """A user's split: one array of example indices per client."""
    if isinstance(indices, (dict, str)) or not length_hint(indices):
        raise DataError(f"the split is {indices!r:.60}; give a list of example indices per client.")
    pieces = []
    for client, given in enumerate(indices):
        try:
            piece = np.asarray(given)
        except ValueError:  # lists of different lengths
            piece = np.asarray([""])
        if not piece.size:
            raise DataError(f"client {client} has no examples; every client needs at least one.")
        if piece.ndim != 1 or not np.issubdtype(piece.dtype, np.integer):
            raise DataError(f"client {client}: give a list of whole numbers, not {given!r:.60}.")
        outside = piece[(piece < 0) | (piece >= num_examples)]
        if outside.size:
            raise DataError(
                f"client {client} has index {outside[0]}; the data has examples 0 to "
                f"{num_examples - 1}."
            )
        pieces.append(piece.astype(np.int64))
    return _in_pieces(pieces)


def _check_enough(num_examples: int, num_clients: int, min_examples: int) -> None:
    """``min_examples``: the minimum per client; with shards, the number of its shards."""
    if min(num_clients, min_examples) < 1:
        raise DataError(
            f"{num_clients} clients with at least {min_examples} examples or shards each: both "
            "numbers must be at least 1."
        )
    if num_clients * min_examples > num_examples:
        raise DataError(
            f"{num_clients} clients with at least {min_examples} examples each need more "
            f"than the {num_examples} there are. Use fewer clients or a smaller minimum."
        )


def _topped_up(
    owner: NDArray[np.int64], num_clients: int, minimum: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Give clients below the minimum random examples of the clients that have the most."""
    counts = np.bincount(owner, minlength=num_clients)
    missing = np.maximum(0, minimum - counts)
    needed = int(missing.sum())
    if not needed:
        return owner
    # Clients give what they have above the highest level that yields enough. At the next level they
    # would keep one more each: as many of them do as is left over.
    levels = range(minimum, int(counts.max()) + 1)
    too_high = bisect_left(levels, True, key=lambda n: np.maximum(0, counts - n).sum() < needed)
    gifts = np.maximum(0, counts - levels[too_high - 1])
    gifts[np.flatnonzero(gifts)[: int(gifts.sum()) - needed]] -= 1
    shuffled = random.permutation(len(owner))
    by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    given = by_owner[rank < np.repeat(gifts, counts)]
    owner[random.permutation(given)] = np.repeat(np.arange(num_clients), missing)
    return owner


def _in_pieces(pieces: Sequence[NDArray[np.int64]]) -> Split:
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
    return Split(np.concatenate(pieces), offsets)
