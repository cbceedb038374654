"""Random generators keyed by (seed, purpose, round, client).

Every draw uses such a generator, so results do not depend on the order in which workers run, and
a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def _sequence(seed: int, purpose: str, round_: int, client: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), round_, client])


def generator(seed: int, purpose: str, *, round: int = 0, client: int = 0) -> np.random.Generator:
    """A NumPy generator for one purpose, round and client.

    >>> bool(generator(1, "batches", client=3).random() == generator(1, "batches").random())
    False
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, round, client)))


def torch_seed(seed: int, purpose: str, *, round: int = 0, client: int = 0) -> int:
    """A 63-bit integer for ``torch.manual_seed``, keyed like :func:`generator`."""
    word = _sequence(seed, purpose, round, client).generate_state(1, np.uint64)[0]
    return int(word >> np.uint64(1))


@contextmanager
def seeded_globals(seed: int, purpose: str, *, round: int = 0, client: int = 0) -> Iterator[None]:
    """Inside the block, ``random`` and ``numpy.random`` draw numbers keyed like :func:`generator`.

    Users' models, data sets and augmentations draw from these global generators. The caller's
    states are restored afterwards.

    >>> with seeded_globals(1, "training", client=3):
    ...     first = random.random(), np.random.rand()
    >>> with seeded_globals(1, "training", client=3):
    ...     first == (random.random(), np.random.rand())
    True
    """
    states = random.getstate(), np.random.get_state()
    sequence = _sequence(seed, purpose, round, client)
    try:
        random.seed(int(sequence.generate_state(1, np.uint64)[0]))
        np.random.seed(sequence.generate_state(4))
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
