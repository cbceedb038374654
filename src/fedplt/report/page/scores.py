"""Numbers from the record of a round: scores of single clients, their summary, all by name."""

from __future__ import annotations

import math

from fedplt.federation import RoundRecord


def client_summary(record: RoundRecord) -> dict[str, float]:
    """Mean, std and quantiles over clients; empty if they were not evaluated."""
    found = record.client_scores or {}
    return {key: value for key, value in found.items() if not key.isdecimal()}


def scores_by_client(record: RoundRecord) -> dict[int, float]:
    """Scores by client; of a large fleet only the lowest and the highest."""
    found = record.client_scores or {}
    return {int(key): value for key, value in found.items() if key.isdecimal()}


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
