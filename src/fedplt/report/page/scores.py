"""Scores of single clients, and their summary, from the record of a round."""

from __future__ import annotations

from fedplt.federation import RoundRecord


def client_summary(record: RoundRecord) -> dict[str, float]:
    """Mean, std and quantiles over clients; empty if they were not evaluated."""
    found = record.client_scores or {}
    return {key: value for key, value in found.items() if not key.isdecimal()}


def scores_by_client(record: RoundRecord) -> dict[int, float]:
    """Scores by client; of a large fleet only the lowest and the highest."""
    found = record.client_scores or {}
    return {int(key): value for key, value in found.items() if key.isdecimal()}
