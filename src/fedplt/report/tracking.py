"""Numbers of rounds for trackers: TensorBoard, W&B, MLflow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedplt.federation import OnRound, RoundRecord
from fedplt.imports import optional_module
from fedplt.report.page import client_summary


def scalars(record: RoundRecord, metric: str = "score") -> dict[str, float]:
    """The numbers of a round by name, for a tracker such as TensorBoard, W&B or MLflow.

    Names are ``group/name``: ``validation/score``, ``training/loss``, ``total/bytes_up``. A number
    that this round lacks, such as the score between evaluations, is left out.
    """
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
    _, module = (
        optional_module(name, "--tensorboard", "'fedplt[tracking]'")
        for name in ("tensorboard", "torch.utils.tensorboard")
    )
    writers: list[Any] = []

    def log(record: RoundRecord) -> None:
        if not writers:  # only now: a run makes its folder itself
            purge = rounds_done + 1 if rounds_done else None
            writers.append(module.SummaryWriter(str(folder), purge_step=purge))
        for tag, value in scalars(record).items():
            writers[0].add_scalar(tag, value, record.round)

    try:
        yield log
    finally:
        for writer in writers:
            writer.close()
