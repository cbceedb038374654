"""The outcome of a round, before it is committed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedplt.client import ClientResult
from fedplt.federation.availability import Attendance
from fedplt.federation.run_folder.records import RoundRecord, Totals
from fedplt.federation.sampler import Selection
from fedplt.server import MAX_LOSS, Memory


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundOutcome:
    """A round as a value. It is committed as a whole: an interrupted round leaves no trace."""

    state: Tensor
    memory: Memory
    results: Sequence[ClientResult]
    selection: Selection
    asked: Attendance
    rejected: dict[str, str]
    touched: Callable[[], Tensor]
    """Mask of the coordinates that at least one client trained."""
    cost: Totals
    clipped: dict[str, float] = field(default_factory=dict)

    def record(
        self, round: int, total: Totals, seconds: float, diagnostics: dict[str, Any] | None
    ) -> RoundRecord:
        """The round's record, without an evaluation; ``round`` counts from 1."""
        return RoundRecord(
            round=round,
            num_clients=len(self.selection.clients),
            train_loss=self._mean_loss(),
            cost=self.cost,
            total=total,
            seconds=seconds,
            rejected=self.rejected,
            sampling=self.selection.record,
            diagnostics=diagnostics,
            clipped=self.clipped,
            dropped=self.asked.dropped,
            late=self.asked.late,
        )

    def _mean_loss(self) -> float:
        """Mean training loss, weighted by examples; without those that are not finite, or huge."""
        sound = [result for result in self.results if str(result.client) not in self.rejected]
        sound = [result for result in sound if abs(result.loss) <= MAX_LOSS]
        losses = torch.tensor([result.loss for result in sound], dtype=torch.float64)
        weights = torch.tensor([result.num_examples for result in sound], dtype=torch.float64)
        return float((losses * weights).sum() / weights.sum()) if sound else math.nan
