"""Who trains and who uploads in a round, and what the run remembers and writes down about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.aggregation import Aggregator
from fedplt.federation.engine import LocalResult
from fedplt.federation.job import Job
from fedplt.federation.sampling_record import chosen_record, sampling_record
from fedplt.sampling import (
    approximate_probabilities,
    independent_sample,
    paper_probabilities,
    sampling_probabilities,
)
from fedplt.update import ClientUpdate

NUMBER_BYTES = 8
"""A norm, a sum or a probability is sent as one double."""
ANSWER_BYTES = 1
"""Upload or not."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Who uploads in a round."""

    clients: list[int]
    probabilities: NDArray[np.float64]
    """Of every client of the fleet, to be chosen."""
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

    def before_training(self, round: int) -> Selection | None:
        """The choice, if it can be made before anybody trains; else everybody is to train."""
        settings, number = self.settings, len(self._everybody)
        if settings.by_norm:
            return self._by_last_norms(round) if settings.norms == "last" else None
        chosen = self.job.participants(round)
        chances = np.full(number, len(chosen) / number)
        record = chosen_record(chosen) if settings.name == "uniform" else None
        return Selection(chosen, chances, record=record)

    def after_training(self, round: int, results: Sequence[LocalResult]) -> Selection:
        """The choice by the norms of everybody's update, which all clients send first."""
        norms = np.array([_norm(result) for result in results])
        bad = np.flatnonzero(~np.isfinite(norms))
        norms[bad] = 0.0
        chances, exchanges = self._probabilities(norms)
        chances[bad] = 0.0
        chosen = independent_sample(chances, seed=self.job.config.seed, round=round).tolist()
        number = len(results)
        return Selection(
            chosen,
            chances,
            {str(k): f"the norm of its update is {_norm(results[k])}" for k in bad.tolist()},
            number * NUMBER_BYTES * (1 + 2 * exchanges),
            # Where clients flip their own coin, the answers are sums instead of a yes or no.
            number * (NUMBER_BYTES * (1 + exchanges) if exchanges else ANSWER_BYTES),
            self._record(chosen, chances, norms, number),
        )

    def _by_last_norms(self, round: int) -> Selection:
        known = ~np.isnan(self._last)
        # Nothing is known of a client that never trained: take it for an average one.
        norms = np.where(known, self._last, self._last[known].mean() if known.any() else 0.0)
        best, _ = self._probabilities(norms)
        floor, costs = self.settings.floor, self._costs
        uniform = min(1.0, self._budget / float(costs.sum()))
        chances = (1 - floor) * best + floor * uniform
        chosen = independent_sample(chances, seed=self.job.config.seed, round=round).tolist()
        record = self._record(chosen, chances, norms, len(chosen))
        return Selection(chosen, chances, record=record)

    def expect(self, aggregator: Aggregator, selection: Selection, round: int) -> None:
        """Tell the aggregator whom to divide by: all clients, where the mean is to be unbiased."""
        if self.settings.estimator_used == "unbiased":
            for client, number in enumerate(self.job.num_examples.tolist()):
                if str(client) not in selection.refused:
                    aggregator.expect(self.job.plan.client(client, round), number)

    def weight(self, client: int, update: ClientUpdate, selection: Selection) -> float:
        """How much an update counts: who is rarely chosen counts more when chosen."""
        if self.settings.by_norm or self.settings.estimator_used == "unbiased":
            return update.num_examples / float(selection.probabilities[client])
        return update.num_examples

    def remember(self, results: Sequence[LocalResult]) -> None:
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
        return np.ones_like(ratios) if self.settings.name == "ocs" else ratios

    def _probabilities(self, norms: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
        """Probabilities, and exchanges between server and clients beyond the norms themselves."""
        fleet = (norms, self.job.num_examples, self._costs, self._budget)
        if self.settings.name == "approximate-ocs":
            return approximate_probabilities(*fleet)
        if self.settings.name == "paper-ocs":
            return np.minimum(1.0, paper_probabilities(*fleet)), 0
        return sampling_probabilities(*fleet), 0

    def _record(
        self,
        chosen: list[int],
        chances: NDArray[np.float64],
        norms: NDArray[np.float64],
        num_trained: int,
    ) -> dict[str, Any]:
        return sampling_record(
            chosen, chances, norms, self.job.num_examples, self._costs, self._budget, num_trained
        )


def _norm(result: LocalResult) -> float:
    """The norm that counts: of the update, or weighted as it will be aggregated."""
    return result.metrics.get("weighted_norm", result.norm)
