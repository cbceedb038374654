"""Log rounds for TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from fedplt.federation import OnRound, RoundRecord
from fedplt.report.page.scores import client_summary


def scalars(record: RoundRecord, metric: str = "score") -> dict[str, float]:
    """What is logged of a round, by TensorBoard's tags."""
    values: dict[str, float | None] = {
        f"validation/{metric}": record.score,
        "validation/loss": record.loss,
        "training/loss": record.train_loss,
        "training/clients": record.num_clients,
        "training/seconds": record.seconds,
        **{f"total/{name}": float(value) for name, value in vars(record.total).items()},
        **{f"clients/{name}": value for name, value in client_summary(record).items()},
    }
    moved = record.diagnostics or {}
    for key in ("update_magnitude", "effective_perturbation"):
        values[f"model/{key}"] = moved.get(key)
        for name, layer in (moved.get("layers") or {}).items():
            values[f"{key}/{name}"] = layer.get(key)
    return {tag: v for tag, v in values.items() if v is not None and math.isfinite(v)}


@contextmanager
def tensorboard_rounds(folder: Path, rounds_done: int = 0) -> Iterator[OnRound]:
    """Gives a callback that logs rounds into a folder; a resumed run replaces later rounds."""
    writers: list[SummaryWriter] = []

    def log(record: RoundRecord) -> None:
        if not writers:  # only now: a run makes its folder itself
            purge = rounds_done + 1 if rounds_done else None
            writers.append(SummaryWriter(str(folder), purge_step=purge))
        for tag, value in scalars(record).items():
            writers[0].add_scalar(tag, value, record.round)

    try:
        yield log
    finally:
        for writer in writers:
            writer.close()
