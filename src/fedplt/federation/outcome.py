"""The outcome of a round, before it is committed, and rounds that do not count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedplt.client import ClientResult
from fedplt.errors import DivergedError, TooFewClientsError
from fedplt.federation.availability import Attendance
from fedplt.federation.choose_clients import Selection
from fedplt.federation.job import Job
from fedplt.federation.run_folder.records import RoundRecord, Totals
from fedplt.server import MAX_LOSS, Aggregator, Broadcast, Memory

MAX_LISTED = 50
"""A record lists at most this many clients with clipped updates."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundOutcome:
    """A round as a value. It is committed as a whole: an interrupted round leaves no trace."""

    state: Tensor
    memory: Memory
    results: Sequence[ClientResult]
    selection: Selection
    asked: Attendance
    added: Sequence[int]
    """Clients whose updates were aggregated, in this order."""
    rejected: dict[str, str]
    cost: Totals
    aggregator: Aggregator
    sent: Broadcast
    kept: Sequence[int]
    """Clients that keep their local state of this round."""

    def record(self, **others: Any) -> RoundRecord:
        """The round's record without an evaluation; ``others`` are further fields."""
        return RoundRecord(
            num_clients=len(self.selection.clients),
            train_loss=self._mean_loss(),
            cost=self.cost,
            rejected=self.rejected,
            sampling=self.selection.record,
            clipped=self._clipped(),
            dropped=self.asked.dropped,
            late=self.asked.late,
            **others,
        )

    def _clipped(self) -> dict[str, float]:
        """Clients whose updates a clipped mean scaled down, and by how much; the smallest first."""
        if not self.aggregator.factors:
            return {}
        found = sorted(zip(self.aggregator.factors, self.added, strict=True))
        return {str(client): float(f"{by:.3g}") for by, client in found[:MAX_LISTED] if by < 1}

    def _mean_loss(self) -> float:
        """Mean training loss, weighted by examples; leaves out infinite, NaN and huge losses."""
        sound = [result for result in self.results if str(result.client) not in self.rejected]
        sound = [result for result in sound if abs(result.loss) <= MAX_LOSS]
        losses = torch.tensor([result.loss for result in sound], dtype=torch.float64)
        weights = torch.tensor([result.num_examples for result in sound], dtype=torch.float64)
        return float((losses * weights).sum() / weights.sum()) if sound else math.nan


def refuse_too_few(job: Job, round: int, number: int, rejected: Mapping[str, str]) -> None:
    """Refuse a round with fewer updates than ``server.min_clients``."""
    least = job.config.server.min_clients
    if number < least:
        reasons = "; ".join(f"{job.client_name(int(k))}: {why}" for k, why in rejected.items())
        raise TooFewClientsError(
            f"round {round + 1}: {number} of at least {least} updates came "
            f"(server.min_clients). {reasons}"
        )


def stop_if_all_are_bad(
    job: Job, round: int, num_trained: int, rejected: Mapping[str, str]
) -> None:
    """Stop if every update was rejected.

    A sampler by norm may draw a single client, or a round may ask a single node: rejecting that
    one does not stop the run. It may be hostile, and later rounds ask others.
    """
    of_many = job.config.engine.name == "flower" and job.plan.num_clients > 1
    alone = num_trained == 1 and (job.config.sampling.by_norm or of_many)
    if rejected and len(rejected) == num_trained and not alone:
        first, reason = next(iter(rejected.items()))
        scaler = job.recipe.scaler != "none"
        hint = " The scaler (method.scaler) makes steps larger; try it without." if scaler else ""
        raise DivergedError(
            f"round {round + 1}: every client's update was refused; "
            f"{job.client_name(int(first))}: {reason}{hint}"
        )
