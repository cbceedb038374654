"""Who trains and who uploads in a round, and what the run remembers and writes down about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import ClientResult, ClientUpdate
from fedplt.federation.job import Job
from fedplt.federation.sampling_record import chosen_record, sampling_record
from fedplt.planning import RoundAssignments
from fedplt.sampling import independent_sample, uniform_sample
from fedplt.server import Aggregator

NUMBER_BYTES = 8
"""A norm, a sum or a probability is sent as one double."""
ANSWER_BYTES = 1
"""Upload or not."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Who uploads in a round."""

    asked: list[int]
    """Those who were to train; some may be away."""
    clients: list[int]
    """Those who upload: chosen, and there."""
    probabilities: NDArray[np.float64]
    """Of every client of the fleet, to be chosen; 0 where it is away."""
    refused: dict[str, str] = field(default_factory=dict)
    """Clients whose norm says that their training diverged."""
    bytes_up: int = 0
    bytes_down: int = 0
    """Messages about norms and who is chosen; models and updates are counted elsewhere."""
    record: dict[str, Any] | None = None


class ClientSampler:
    """Chooses clients as ``[sampling]`` says; remembers norms from round to round if it must."""

    def __init__(self, job: Job) -> None:
        self.job, self.settings = job, job.config.sampling
        self._everybody = list(range(job.plan.num_clients))
        self._last = np.full(len(self._everybody), np.nan)

    def before_training(self, round: int, there: Sequence[int]) -> Selection | None:
        """The choice, if it can be made before anybody trains; else everybody is to train.

        It is made without knowing who is away.
        """
        settings, number = self.settings, len(self._everybody)
        present = self._mask(there)
        if settings.by_norm:
            return self._by_last_norms(round, present) if settings.norms == "last" else None
        asked = self._asked(round)
        chosen = [client for client in asked if present[client]]
        chances = np.where(present, len(asked) / number, 0.0)
        record = None
        if settings.name == "uniform":
            record = chosen_record(chosen, num_away=len(asked) - len(chosen))
        return Selection(asked, chosen, chances, record=record)

    def _asked(self, round: int) -> list[int]:
        """Who is to take part where norms do not matter, in ascending order."""
        number = self.settings.num_clients
        if number is None:
            return self._everybody
        seed = self.job.config.seed
        chosen = uniform_sample(len(self._everybody), number, seed=seed, round=round)
        return [int(client) for client in chosen]

    def block_weights(self, assignments: RoundAssignments, there: Sequence[int]) -> Tensor | None:
        """What each number will be divided by, where clients' norms depend on it."""
        if self.settings.objective != "aggregate":
            return None
        aggregator = Aggregator(self.job.layers, self.job.recipe.normalizer)
        for client in there:
            aggregator.expect(assignments[client], int(self.job.num_examples[client]))
        return aggregator.divisors()

    def after_training(self, round: int, results: Sequence[ClientResult]) -> Selection:
        """The choice by the norms of everybody's update, which all clients send first."""
        norms = np.zeros(len(self._everybody))
        present = self._mask([result.client for result in results])
        for result in results:
            norms[result.client] = _norm(result)
        bad = np.flatnonzero(~np.isfinite(norms))
        refused = {str(k): f"the norm of its update is {norms[k]}" for k in bad.tolist()}
        norms[bad] = 0.0
        chances, exchanges = self._probabilities(norms)
        if not norms.any():  # all the same, for those who can be chosen
            chances = np.full(len(norms), self._uniform(present))
        chances[bad] = 0.0
        chances[~present] = 0.0
        chosen = independent_sample(chances, seed=self.job.config.seed, round=round).tolist()
        number = len(results)
        return Selection(
            self._everybody,
            chosen,
            chances,
            refused,
            number * NUMBER_BYTES * (1 + 2 * exchanges),
            # Where clients flip their own coin, the answers are sums instead of a yes or no.
            number * (NUMBER_BYTES * (1 + exchanges) if exchanges else ANSWER_BYTES),
            sampling_record(
                chosen, chances, norms, self.job.num_examples, self._costs, self._budget,
                uniform=self._uniform(present),
                num_trained=number,
                num_away=0 if results else len(norms),
            ),
        )  # fmt: skip

    def _by_last_norms(self, round: int, present: NDArray[np.bool_]) -> Selection:
        known = ~np.isnan(self._last)
        # Nothing is known of a client that never trained: take it for an average one.
        norms = np.where(known, self._last, self._last[known].mean() if known.any() else 0.0)
        best, _ = self._probabilities(norms)
        floor, uniform = self.settings.floor, self._uniform(np.ones_like(present))
        chances = (1 - floor) * best + floor * uniform
        asked = independent_sample(chances, seed=self.job.config.seed, round=round).tolist()
        chosen = [client for client in asked if present[client]]
        # The budget was spread over those who are away too; so would that of uniform sampling be.
        chances, norms = np.where(present, chances, 0.0), np.where(present, norms, 0.0)
        record = sampling_record(
            chosen, chances, norms, self.job.num_examples, self._costs, self._budget,
            uniform=uniform,
            num_trained=len(chosen),
            num_away=len(asked) - len(chosen),
        )  # fmt: skip
        return Selection(asked, chosen, chances, record=record)

    def expect(
        self,
        aggregator: Aggregator,
        selection: Selection,
        assignments: RoundAssignments,
        there: Sequence[int],
    ) -> None:
        """Tell the aggregator whom to divide by: all who are there, where it is to be unbiased."""
        if self.settings.estimator_used == "unbiased":
            for client in there:
                if str(client) not in selection.refused:
                    number = int(self.job.num_examples[client])
                    aggregator.expect(assignments[client], number)

    def weight(self, client: int, update: ClientUpdate, selection: Selection) -> float:
        """How much an update counts: who is rarely chosen counts more when chosen."""
        if self.settings.by_norm or self.settings.estimator_used == "unbiased":
            return update.num_examples / float(selection.probabilities[client])
        return update.num_examples

    def remember(self, results: Sequence[ClientResult]) -> None:
        """Keep the norms for rounds to come. Call it when the round counts."""
        for result in results:
            norm = _norm(result)
            self._last[result.client] = norm if np.isfinite(norm) else 0.0

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        if not (self.settings.by_norm and self.settings.norms == "last"):
            return {}
        return {"sampling.last_norms": torch.from_numpy(self._last.copy())}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if "sampling.last_norms" in tensors:
            self._last = tensors["sampling.last_norms"].numpy().copy()

    @property
    def _budget(self) -> float:
        assert self.settings.budget is not None
        return self.settings.budget

    @property
    def _costs(self) -> NDArray[np.float64]:
        """What an upload costs, in the unit of the budget."""
        ratios = self.job.plan.achieved_ratios
        return ratios if self.settings.in_models else np.ones_like(ratios)

    def _probabilities(self, norms: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
        """Probabilities, and exchanges between server and clients beyond the norms themselves."""
        examples = self.job.num_examples.astype(np.float64)
        fleet = (norms, examples, self._costs, self._budget)
        return self.settings.rule.choose(fleet, match_budget=self.settings.match_budget)

    def _uniform(self, among: NDArray[np.bool_]) -> float:
        """The probability that spends the budget, or all there is to spend, if all have it."""
        whole = float(self._costs[among].sum())
        return min(1.0, self._budget / whole) if whole else 0.0

    def _mask(self, clients: Sequence[int]) -> NDArray[np.bool_]:
        result = np.zeros(len(self._everybody), dtype=np.bool_)
        result[list(clients)] = True
        return result


def _norm(result: ClientResult) -> float:
    """The norm that counts: of the update, or weighted as it will be aggregated."""
    return result.norm if result.weighted_norm is None else result.weighted_norm


def most_clients(job: Job) -> int:
    """How many clients train in a round, at most."""
    return job.config.sampling.num_clients or job.plan.num_clients


def most_numbers(job: Job) -> int:
    """How many numbers the updates of one round have, at most."""
    sizes, sampling = job.plan.update_sizes, job.config.sampling
    most = int(np.sort(sizes)[::-1][: most_clients(job)].sum())
    if not (sampling.by_norm and sampling.norms == "last"):
        return most
    # Independent draws have no largest number but all. Bernstein's inequality: not more than this
    # but for one round in e^30, where expected updates cost the budget.
    largest, costs = int(sizes.max()), np.ones(len(sizes))
    if sampling.in_models:
        costs = job.plan.achieved_ratios
    expected = (sampling.budget or 0) * float((sizes / costs).max())
    return min(most, math.ceil(expected + math.sqrt(60 * largest * expected) + 20 * largest))
