"""Samplers by name: rules by update norms, and samplers that choose before training.

To add one, write it in a new file: a function and a line in ``RULES`` if it chooses clients by
their update norms, a subclass of :class:`Sampler` and a line in ``SAMPLERS`` if it chooses before
training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedplt.sampling.probabilities import (
    Numbers,
    approximate_probabilities,
    paper_probabilities,
    proportional_probabilities,
    sampling_probabilities,
)
from fedplt.seeds import generator
from fedplt.text import brief


def independent_sample(probabilities: ArrayLike, *, seed: int, round: int) -> NDArray[np.int64]:
    """Draw each client independently with its own probability; ascending, perhaps empty.

    >>> independent_sample([1.0, 0.0, 1.0], seed=0, round=3).tolist()
    [0, 2]
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    # Coins are in [0, 1): probability 1 is always chosen, probability 0 never.
    coins = generator(seed, "sampling coins", round=round).random(len(probabilities))
    return np.flatnonzero(coins < probabilities)


FleetNumbers = tuple[Numbers, Numbers, Numbers, float]
"""Update norms, numbers of examples, costs of an upload, and the budget."""


@dataclass(frozen=True)
class Rule:
    """A rule that gives each client a probability."""

    probabilities: Callable[..., Numbers | tuple[Numbers, int]]
    """Computes the probabilities of a fleet, and the number of exchanges beyond the norms."""
    budget_in: Literal["models", "clients"] = "models"
    scores: Callable[..., Numbers] | None = None
    """For rules that do not spend a budget in whole models exactly: the scores to which
    probabilities are proportional. ``match_budget`` needs them."""

    def choose(self, fleet: FleetNumbers, *, match_budget: bool = False) -> tuple[Numbers, int]:
        """Probabilities, and the number of message exchanges needed beyond sending the norms."""
        if match_budget:
            assert self.scores is not None
            return proportional_probabilities(self.scores(*fleet), fleet[2], fleet[3]), 0
        found = self.probabilities(*fleet)
        return found if isinstance(found, tuple) else (found, 0)


def _original_scores(norms: Numbers, examples: Numbers, costs: Numbers, budget: float) -> Numbers:
    return norms * examples


def _clipped(*fleet: object) -> Numbers:
    return np.minimum(1.0, paper_probabilities(*fleet))  # type: ignore[arg-type]


RULES = {
    "ocs": Rule(sampling_probabilities, "clients", _original_scores),
    "fedplt-ocs": Rule(sampling_probabilities),
    "paper-ocs": Rule(_clipped, scores=paper_probabilities),
    "approximate-ocs": Rule(approximate_probabilities),
}


Clients = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SamplingRequest:
    """The input of a sampler. Arrays have one entry per client."""

    round: int
    """The number of the round, from 0."""
    seed: int
    num_examples: NDArray[np.int64]
    """The weight of each client's update in a mean."""
    ratios: Numbers
    """The fraction of the model that each client trains."""
    last_norms: Numbers
    """The norm of each client's last update; NaN if it has not trained yet."""

    __repr__ = brief

    @property
    def num_clients(self) -> int:
        return len(self.ratios)

    def generator(self, purpose: str) -> np.random.Generator:
        """A generator for this round: the same for the same seed, also in a resumed run."""
        return generator(self.seed, purpose, round=self.round)


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Chooses the clients of a round. Its fields are its options (``sampling.options``)."""

    uses_norms: ClassVar[bool] = True
    """Whether ``last_norms`` must be in the checkpoint."""

    def probabilities(self, request: SamplingRequest) -> Numbers:
        """Each client's probability in this round; estimators divide by it."""
        raise NotImplementedError

    def draw(self, request: SamplingRequest, probabilities: Numbers) -> Clients:
        """The chosen clients. Default: each independently, with its probability."""
        return independent_sample(probabilities, seed=request.seed, round=request.round)

    def share(self, num_clients: int) -> float:
        """Expected fraction of the clients in a round, for forecasts and warnings."""
        return 1.0

    def most_clients(self, num_clients: int) -> int:
        """Upper bound of the clients in a round; the simulator allocates memory for them."""
        return num_clients

    def most_values(self, sizes: NDArray[np.int64]) -> int:
        """Upper bound of the values in all updates of a round, by the size of each update."""
        return int(np.sort(sizes)[::-1][: self.most_clients(len(sizes))].sum())


@dataclass(frozen=True, kw_only=True)
class All(Sampler):
    """Every client, in every round."""

    uses_norms: ClassVar[bool] = False

    def probabilities(self, request: SamplingRequest) -> Numbers:
        return np.ones(request.num_clients)


@dataclass(frozen=True, kw_only=True)
class Uniform(Sampler):
    """A fixed number of clients, all equally likely."""

    uses_norms: ClassVar[bool] = False
    num_clients: int

    def probabilities(self, request: SamplingRequest) -> Numbers:
        return np.full(request.num_clients, self.num_clients / request.num_clients)

    def draw(self, request: SamplingRequest, probabilities: Numbers) -> Clients:
        random = request.generator("sampling")
        return np.sort(random.choice(request.num_clients, self.num_clients, replace=False))

    def share(self, num_clients: int) -> float:
        return self.num_clients / num_clients

    def most_clients(self, num_clients: int) -> int:
        return self.num_clients


@dataclass(frozen=True, kw_only=True)
class Bernoulli(Sampler):
    """Every client with the same probability, independently of the others."""

    uses_norms: ClassVar[bool] = False
    probability: float

    def probabilities(self, request: SamplingRequest) -> Numbers:
        return np.full(request.num_clients, self.probability)

    def share(self, num_clients: int) -> float:
        return self.probability

    def most_values(self, sizes: NDArray[np.int64]) -> int:
        return most_drawn(sizes, self.probability * float(sizes.sum()))


@dataclass(frozen=True, kw_only=True)
class Strong(Sampler):
    """The clients that train at least this fraction of the model; if none does, the strongest."""

    uses_norms: ClassVar[bool] = False
    min_ratio: float = 1.0

    def probabilities(self, request: SamplingRequest) -> Numbers:
        least = min(self.min_ratio, float(request.ratios.max()))
        return np.where(request.ratios >= least, 1.0, 0.0)


SAMPLERS: dict[str, type[Sampler]] = {
    "all": All,
    "uniform": Uniform,
    "bernoulli": Bernoulli,
    "strong": Strong,
}


def most_drawn(sizes: NDArray[np.int64], expected: float) -> int:
    """Bound of the total size of independently drawn updates whose expected total is known.

    By Bernstein's inequality they exceed it with probability at most e^-30.
    """
    largest = int(sizes.max())
    bound = math.ceil(expected + math.sqrt(60 * largest * expected) + 20 * largest)
    return min(int(sizes.sum()), bound)
