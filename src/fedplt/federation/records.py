"""The records of rounds, and the history of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 1


@dataclass(frozen=True)
class Totals:
    """Costs that add up over rounds."""

    bytes_up: int = 0
    bytes_down: int = 0
    flops: int = 0
    """FLOPs of the clients' training: the matrix products and convolutions that really run."""
    paper_flops: float = 0.0
    """FLOPs by the paper's model, whose backward pass scales with the ratio."""
    simulated_seconds: float = 0.0
    """Time on the clients' devices: the slowest client's, per round; 0 without ``[fleet]``."""

    def plus(self, other: Totals) -> Totals:
        return Totals(
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
            self.flops + other.flops,
            self.paper_flops + other.paper_flops,
            self.simulated_seconds + other.simulated_seconds,
        )


@dataclass(frozen=True)
class RoundRecord:
    """One round. ``accuracy`` is the metric's mean, whatever metric the run uses."""

    round: int
    """The number of the round, from 1."""
    num_clients: int
    train_loss: float
    cost: Totals
    total: Totals
    seconds: float
    accuracy: float | None = None
    loss: float | None = None
    client_accuracy: dict[str, float] | None = None
    """Mean (weighted by examples), std and quantiles over clients; scores by client number."""
    dropped: list[int] = field(default_factory=list)
    """Clients that were away by chance (``fleet.dropout``)."""
    late: list[int] = field(default_factory=list)
    """Clients left out because they would take too long (``fleet.late_after_seconds``)."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Clients whose update was refused, and why."""
    sampling: dict[str, Any] | None = None
    """How the clients were chosen (``docs/sampling.md``); empty if all take part."""
    diagnostics: dict[str, Any] | None = None
    """How the global model moved (``docs/diagnostics.md``), with ``[diagnostics]`` enabled."""
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        """Plain values; unknown values and NaN are left out (JSON has no NaN)."""
        values = asdict(self)
        return {key: value for key, value in values.items() if not _is_nothing(value)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RoundRecord:
        data = {"train_loss": math.nan, **data}
        return cls(**{**data, "cost": Totals(**data["cost"]), "total": Totals(**data["total"])})


def _is_nothing(value: Any) -> bool:
    return value in (None, {}, []) or (isinstance(value, float) and not math.isfinite(value))


@dataclass(frozen=True)
class History:
    """All rounds of a run."""

    rounds: Sequence[RoundRecord]
    test_accuracy: float | None = None
    test_loss: float | None = None

    @property
    def accuracy(self) -> list[float]:
        """The accuracy of each evaluated round."""
        return [r.accuracy for r in self.rounds if r.accuracy is not None]

    @property
    def evaluated(self) -> list[RoundRecord]:
        return [r for r in self.rounds if r.accuracy is not None]

    def final_accuracy(self, last: int = 10) -> float:
        """Mean accuracy of the last evaluated rounds."""
        tail = self.accuracy[-last:]
        return sum(tail) / len(tail) if tail else math.nan
