"""Samplers and aggregation rules as a user writes them, named by import path in tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedplt import AggregationRule, Aggregator, Sampler, sampling_probabilities
from fedplt.server.aggregation_rules import Median


@dataclass(frozen=True, kw_only=True)
class Turns(Sampler):
    """Groups take turns."""

    groups: int = 2

    def probabilities(self, request):
        clients = np.arange(request.num_clients)
        return np.where(clients % self.groups == request.round % self.groups, 1.0, 0.0)

    def share(self, num_clients):
        return 1 / self.groups

    def most_clients(self, num_clients):
        return -(-num_clients // self.groups)


@dataclass(frozen=True, kw_only=True)
class LargestLast(Sampler):
    """Likely, if its last norm was large; two clients in every round."""

    def probabilities(self, request):
        norms = np.nan_to_num(request.last_norms, nan=1.0) + 1e-3
        return 0.5 * norms / norms.max()

    def draw(self, request, probabilities):
        weights = probabilities / probabilities.sum()
        random = request.generator("largest last")
        return random.choice(len(weights), 2, replace=False, p=weights)


@dataclass(frozen=True, kw_only=True)
class Uneven(Sampler):
    """Independent draws with a probability of each client."""

    chances: tuple[float, ...] = (0.9, 0.7, 0.5, 0.3, 0.8)

    def probabilities(self, request):
        return np.array(self.chances)


@dataclass(frozen=True, kw_only=True)
class Wrong(Turns):
    """Does as its option says, which is wrong."""

    how: str = "raise"

    def probabilities(self, request):
        answers = {"short": [0.5], "large": [1.5] * 5, "nan": [float("nan")] * 5, "words": ["x"]}
        if self.how == "raise":
            return 1 // 0
        return answers.get(self.how, np.eye(5)[0])

    def draw(self, request, probabilities):
        return {"twice": [0, 0], "outside": [5], "impossible": [1]}.get(self.how, [0])


class NoProbabilities(Sampler):
    pass


def same_as_built_in(norms, num_examples, costs, budget):
    return sampling_probabilities(norms, num_examples, costs, budget)


def broken_rule(norms, num_examples, costs, budget):
    return norms / 0


@dataclass(frozen=True, kw_only=True)
class OwnMedian(AggregationRule):
    """Of the first ``numbers`` values, as the built-in one; times ``factor``."""

    factor: float = 1.0

    def combine(self, table, numbers):
        return self.factor * Median().combine(table, numbers)

    def fewest_to_outvote_one(self):
        return 3


@dataclass(frozen=True, kw_only=True)
class OwnMean(AggregationRule):
    def start(self, layers, normalizer="contributors"):
        return Aggregator(layers, normalizer, self.min_contributors)


@dataclass(frozen=True, kw_only=True)
class Careless(AggregationRule):
    """Forgets that rows end with NaN."""

    how: str = "nan"

    def combine(self, table, numbers):
        return table.mean(axis=1) if self.how == "nan" else 1 // 0


class NoCombine(AggregationRule):
    pass
