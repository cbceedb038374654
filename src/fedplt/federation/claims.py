"""Cap what clients report about their own data: numbers of examples, and sums over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from fedplt.configuration import RunConfig

Number = TypeVar("Number", int, float)
BELIEVED = 10
"""A client counts as at most this many times the median of all."""


def most_believed(numbers: Sequence[Number]) -> Number:
    """The largest number of examples that a client counts for, where clients say it themselves.

    The lower median: of two clients, the one that says more is bounded by the other.

    >>> most_believed([100, 120, 10**12])
    1200
    >>> most_believed([100, 10**12])
    1000
    """
    return BELIEVED * sorted(numbers)[(len(numbers) - 1) // 2]


def with_claims(config: RunConfig, numbers: Sequence[int]) -> RunConfig:
    """The configuration with the numbers of examples that clients say, and a bound of them."""
    clients = config.clients.model_copy(update={"num_examples": list(numbers)})
    server = config.server
    weighs = server.weights == "examples" and not server.rule.counts_clients
    if weighs and server.max_examples is None:
        server = server.model_copy(update={"max_examples": most_believed(numbers)})
    return config.model_copy(update={"clients": clients, "server": server})
