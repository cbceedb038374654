"""Histories of runs with ``server.average``, made up of their scores."""

from __future__ import annotations

from fedplt.federation import History, RoundRecord, Totals


def history(scores, averages, ship=False):
    """Those of the last model and of the average of models (None: it has none), round by round."""
    rounds = [
        RoundRecord(
            number, 1, 1.0, Totals(), Totals(), 0.5,
            score=score, loss=0.1, average_score=average, average_loss=average and 0.2,
        )
        for number, (score, average) in enumerate(zip(scores, averages, strict=True), start=1)
    ]  # fmt: skip
    return History(rounds, test_score=0.9, ship=ship)
