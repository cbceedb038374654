"""How the updates of a round become one change of the model: the rule, as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedplt.planning import Layers, Normalizer
from fedplt.server.aggregation import Aggregator
from fedplt.server.clipping import ClippedAggregator
from fedplt.server.robust import OrderAggregator

RuleName = Literal["mean", "median", "trimmed-mean", "clipped-mean"]


@dataclass(frozen=True)
class AggregationRule:
    """The name and parameters of a rule."""

    name: RuleName = "mean"
    trim: float = 0.2
    """For ``trimmed-mean``: the fraction of the contributors left out at each end."""
    clip: float = 1.0
    """For ``clipped-mean``: the largest root mean square, in medians of the round."""
    min_contributors: int = 1
    """A block that fewer clients trained keeps its values."""

    def start(self, layers: Layers, normalizer: Normalizer = "contributors") -> Aggregator:
        """An empty aggregator for one round."""
        least = self.min_contributors
        if self.name == "median":
            return OrderAggregator(layers, min_contributors=least)
        if self.name == "trimmed-mean":
            return OrderAggregator(layers, trim=self.trim, min_contributors=least)
        if self.name == "clipped-mean":
            return ClippedAggregator(layers, normalizer, clip=self.clip, min_contributors=least)
        return Aggregator(layers, normalizer, least)

    @property
    def counts_clients(self) -> bool:
        """Whether every client counts once, whatever its weight."""
        return self.name in ("median", "trimmed-mean")

    def fewest_to_outvote_one(self) -> int:
        """The number of contributors from which on one arbitrary client is outvoted; 0: never."""
        if self.name == "median":
            return 3
        if self.name == "trimmed-mean" and self.trim > 0:
            return math.ceil(1 / self.trim - 1e-9)
        return 0
