"""How the updates of a round become one change of the model: the rules, by name.

To add one, write a subclass of :class:`AggregationRule` and add a line to ``RULES``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedplt.planning import Layers, Normalizer
from fedplt.server.aggregation import Aggregator
from fedplt.server.robust import ClippedAggregator, Floats, OrderAggregator


@dataclass(frozen=True, kw_only=True)
class AggregationRule:
    """A rule. Override :meth:`combine` if it works coordinate by coordinate, else :meth:`start`.

    The fields are its options: ``server.min_contributors``, and the keys of ``server.options``.
    """

    min_contributors: int = 1
    """A block that was trained by fewer clients keeps its values."""

    def start(self, layers: Layers, normalizer: Normalizer = "contributors") -> Aggregator:
        """An empty aggregator for one round."""
        return OrderAggregator(layers, self.combine, min_contributors=self.min_contributors)

    def combine(self, table: Floats, numbers: NDArray[np.int64]) -> NDArray[np.floating]:
        """The change of each coordinate, from the changes that the clients sent.

        Args:
            table: (coordinates, clients); each row in ascending order, then NaN for the clients
                that did not train the coordinate.
            numbers: per row, how many clients trained it; where it is 0 the result is not used.
        """
        raise NotImplementedError

    @property
    def counts_clients(self) -> bool:
        """Whether every client counts once, regardless of its weight."""
        return type(self).start is AggregationRule.start

    def fewest_to_outvote_one(self) -> int:
        """The fewest contributors that outvote one arbitrary client; 0: no number does."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Mean(AggregationRule):
    """The mean, weighted by examples."""

    def start(self, layers: Layers, normalizer: Normalizer = "contributors") -> Aggregator:
        return Aggregator(layers, normalizer, self.min_contributors)


@dataclass(frozen=True, kw_only=True)
class Median(AggregationRule):
    """The median, coordinate by coordinate."""

    def combine(self, table: Floats, numbers: NDArray[np.int64]) -> NDArray[np.floating]:
        rows, last = np.arange(len(table)), np.maximum(numbers - 1, 0)
        low, high = table[rows, last // 2], table[rows, np.minimum(numbers // 2, last)]
        return np.asarray(0.5 * low.astype(np.float64) + 0.5 * high.astype(np.float64))

    def fewest_to_outvote_one(self) -> int:
        return 3


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(AggregationRule):
    """The mean without the lowest and highest values, coordinate by coordinate."""

    trim: float = 0.2
    """The fraction of the contributors left out at each end."""

    def combine(self, table: Floats, numbers: NDArray[np.int64]) -> NDArray[np.floating]:
        cut = np.floor(self.trim * numbers + 1e-9)[:, None]
        index = np.arange(table.shape[1])
        kept = (index >= cut) & (index < numbers[:, None] - cut)
        # The ends are never added: they may be huge.
        total = np.where(kept, table, 0.0).sum(axis=1, dtype=np.float64)
        return np.asarray(total / np.maximum(kept.sum(axis=1), 1))

    def fewest_to_outvote_one(self) -> int:
        return math.ceil(1 / self.trim - 1e-9) if self.trim > 0 else 0


@dataclass(frozen=True, kw_only=True)
class ClippedMean(AggregationRule):
    """The mean of updates that are scaled down to a common size."""

    clip: float = 1.0
    """The largest root mean square, as a multiple of the round's median."""

    def start(self, layers: Layers, normalizer: Normalizer = "contributors") -> Aggregator:
        least = self.min_contributors
        return ClippedAggregator(layers, normalizer, clip=self.clip, min_contributors=least)


RULES: dict[str, type[AggregationRule]] = {
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "clipped-mean": ClippedMean,
}
