"""Choose which clients train and upload in a round, and keep the norms that this needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client import ClientResult
from fedplt.errors import RunError
from fedplt.federation.job import Job
from fedplt.federation.sampling_record import chosen_record, sampling_record
from fedplt.planning import RoundAssignments
from fedplt.sampling import independent_sample, uniform_sample
from fedplt.server import Aggregator, SecretStream, norm_problem

NUMBER_BYTES = 8
"""Bytes of a norm, a sum or a probability: one double."""
ANSWER_BYTES = 1
"""Bytes of the server's yes or no to a client."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Which clients upload in a round."""

    asked: list[int]
    """Clients that were asked to train; some may be away."""
    clients: list[int]
    """Clients that upload: chosen and present."""
    probabilities: NDArray[np.float64]
    """Probability of each client of the fleet to be chosen; 0 if it is away."""
    refused: dict[str, str] = field(default_factory=dict)
    """Clients whose update norm is not finite (their training diverged), or is no norm."""
    bytes_up: int = 0
    bytes_down: int = 0
    """Bytes of messages about norms and choices; models and updates are counted elsewhere."""
    record: dict[str, Any] | None = None


class ClientSampler:
    """Chooses clients as ``[sampling]`` asks; with ``norms = "last"``, keeps their norms."""

    def __init__(self, job: Job, secret: SecretStream | None = None) -> None:
        """``secret``: nobody who knows the configuration may know who was drawn."""
        self.job, self.settings, self.secret = job, job.config.sampling, secret
        self._everybody = list(range(job.plan.num_clients))
        self._last = np.full(len(self._everybody), np.nan)

    def before_training(self, round: int, there: Sequence[int]) -> Selection | None:
        """The selection, if it can be made before training; None if all clients must train first.

        Clients are drawn without knowing which are away.
        """
        settings, number = self.settings, len(self._everybody)
        present = self._mask(there)
        if settings.by_norm:
            return self._by_last_norms(round, present) if settings.norms == "last" else None
        asked = self._asked(round)
        if settings.probability is not None:
            self._refuse_too_many(round, asked)
        chosen = [client for client in asked if present[client]]
        chance = settings.probability
        chances = np.where(present, len(asked) / number if chance is None else chance, 0.0)
        record = None
        if settings.name != "all" and self.secret is None:
            record = chosen_record(chosen, num_away=len(asked) - len(chosen))
        return Selection(asked, chosen, chances, record=record)

    def _asked(self, round: int) -> list[int]:
        """Clients that take part, for samplers that do not use norms, in ascending order."""
        settings, number = self.settings, len(self._everybody)
        if settings.name == "all":
            return self._everybody
        seed = self.job.config.seed
        if settings.probability is None:
            chosen = uniform_sample(number, settings.num_clients or 1, seed=seed, round=round)
        elif self.secret is None:
            chances = np.full(number, settings.probability)
            chosen = independent_sample(chances, seed=seed, round=round)
        else:
            draws = self.secret.uniforms("clients", round, number)
            chosen = np.flatnonzero(draws < settings.probability)
        return [int(client) for client in chosen]

    def _refuse_too_many(self, round: int, asked: list[int]) -> None:
        """Independent draws may choose everybody; engines have room for :func:`most_numbers`."""
        if int(self.job.plan.update_sizes[asked].sum()) > most_numbers(self.job):
            raise RunError(
                f"round {round + 1}: {len(asked)} clients were drawn, far above what is expected. "
                "Set sampling.norms = 'fresh', or sampling.probability higher."
            )

    def block_weights(self, assignments: RoundAssignments, there: Sequence[int]) -> Tensor | None:
        """The server's divisor of each value, if the clients' norms must be weighted by it."""
        if not self.settings.weighs_blocks:
            return None
        aggregator = Aggregator(self.job.layers, self.job.recipe.normalizer)
        weights = self.job.weights
        for client in there:
            aggregator.expect(assignments[client], int(weights[client]))
        return aggregator.divisors()

    def after_training(self, round: int, results: Sequence[ClientResult]) -> Selection:
        """The selection by the norms of this round's updates, which all clients send first."""
        norms = np.zeros(len(self._everybody))
        present = self._mask([result.client for result in results])
        refused = {}
        for result in results:
            norms[result.client] = _norm(result)
            if problem := norm_problem(_norm(result)):
                refused[str(result.client)] = problem
        bad = [int(client) for client in refused]
        norms[bad] = 0.0
        chances, exchanges = self._probabilities(norms)
        if not norms.any():  # no update is larger than another: choose uniformly
            chances = np.full(len(norms), self._uniform(present))
        chances[bad] = 0.0
        chances[~present] = 0.0
        chosen = independent_sample(chances, seed=self.job.config.seed, round=round).tolist()
        number = len(results)
        return Selection(
            self._everybody,
            chosen,
            chances,
            refused=refused,
            bytes_up=number * NUMBER_BYTES * (1 + 2 * exchanges),
            # If clients draw for themselves, the server sends sums instead of a yes or no.
            bytes_down=number * (NUMBER_BYTES * (1 + exchanges) if exchanges else ANSWER_BYTES),
            record=sampling_record(
                chosen, chances, norms, self.job.weights, self._costs, self._budget,
                uniform=self._uniform(present),
                num_trained=number,
                num_away=0 if results else len(norms),
            ),
        )  # fmt: skip

    def _by_last_norms(self, round: int, present: NDArray[np.bool_]) -> Selection:
        known = ~np.isnan(self._last)
        # A client that never trained has no norm yet: use the average.
        norms = np.where(known, self._last, self._last[known].mean() if known.any() else 0.0)
        best, _ = self._probabilities(norms)
        floor, uniform = self.settings.floor, self._uniform(np.ones_like(present))
        chances = (1 - floor) * best + floor * uniform
        asked = independent_sample(chances, seed=self.job.config.seed, round=round).tolist()
        self._refuse_too_many(round, asked)
        chosen = [client for client in asked if present[client]]
        # The budget covers clients that are away too, and uniform sampling is treated alike.
        chances, norms = np.where(present, chances, 0.0), np.where(present, norms, 0.0)
        record = sampling_record(
            chosen, chances, norms, self.job.weights, self._costs, self._budget,
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
        """Set the aggregator's divisors: all present clients, for the unbiased estimator."""
        if self.settings.estimator_used == "unbiased":
            weights = self.job.weights
            for client in there:
                if str(client) not in selection.refused:
                    aggregator.expect(assignments[client], int(weights[client]))

    def weights(self, selection: Selection) -> NDArray[np.float64]:
        """The weight of each client's update; unbiased: over its probability to be chosen."""
        weights, chances = self.job.weights.astype(np.float64), selection.probabilities
        if self.settings.by_norm or self.settings.estimator_used == "unbiased":
            return np.divide(weights, chances, out=np.zeros_like(weights), where=chances > 0)
        return weights

    def remember(self, results: Sequence[ClientResult], rejected: Mapping[str, str]) -> None:
        """Keep the norms for later rounds. The round loop calls this when it commits a round.

        A client whose update was rejected is asked by its last norm that was true.
        """
        for result in results:
            norm = _norm(result)
            if norm_problem(norm):
                self._last[result.client] = 0.0
            elif str(result.client) not in rejected:
                self._last[result.client] = norm

    def tensors(self) -> dict[str, Tensor]:
        """The sampler's state for a checkpoint."""
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
        """The cost of each client's upload, in the unit of the budget."""
        ratios = self.job.plan.achieved_ratios
        return ratios if self.settings.in_models else np.ones_like(ratios)

    def _probabilities(self, norms: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
        """Probabilities, and the number of message exchanges needed beyond sending the norms."""
        weights = self.job.weights.astype(np.float64)
        fleet = (norms, weights, self._costs, self._budget)
        return self.settings.rule.choose(fleet, match_budget=self.settings.match_budget)

    def _uniform(self, among: NDArray[np.bool_]) -> float:
        """The common probability that spends the budget, at most 1."""
        whole = float(self._costs[among].sum())
        return min(1.0, self._budget / whole) if whole else 0.0

    def _mask(self, clients: Sequence[int]) -> NDArray[np.bool_]:
        result = np.zeros(len(self._everybody), dtype=np.bool_)
        result[list(clients)] = True
        return result


def _norm(result: ClientResult) -> float:
    """The norm to sample by: as the update will be aggregated if known, else the plain norm."""
    return result.norm if result.weighted_norm is None else result.weighted_norm


def most_clients(job: Job) -> int:
    """Upper bound of the number of clients that train in a round."""
    return job.config.sampling.num_clients or job.plan.num_clients


def most_numbers(job: Job) -> int:
    """Upper bound of the total size of one round's updates, in values."""
    sizes, sampling = job.plan.update_sizes, job.config.sampling
    most = int(np.sort(sizes)[::-1][: most_clients(job)].sum())
    by_last = sampling.by_norm and sampling.norms == "last"
    if not by_last and sampling.probability is None:
        return most
    # Independent draws may choose all clients. By Bernstein's inequality the updates of a round
    # exceed this bound with probability at most e^-30, if their expected cost is the budget.
    largest, costs = int(sizes.max()), np.ones(len(sizes))
    if sampling.in_models:
        costs = job.plan.achieved_ratios
    expected = (sampling.budget or 0) * float((sizes / costs).max())
    if sampling.probability is not None:
        expected = sampling.probability * float(sizes.sum())
    return min(most, math.ceil(expected + math.sqrt(60 * largest * expected) + 20 * largest))
