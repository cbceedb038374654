"""Progress of a run: the time left, and who is away."""

from __future__ import annotations

import io

from rich.console import Console

from fedplt.client import accuracy
from fedplt.federation import RoundRecord, Totals
from fedplt.federation.progress import TimeLeft, rounds_progress


def record(round, seconds=1.0, **values):
    return RoundRecord(round, 3, 0.5, Totals(), Totals(), seconds, 0.5, 0.7, **values)


def test_the_time_left_settles_within_three_rounds():
    """A first round that takes long, for caches and workers, is forgotten."""
    left = TimeLeft(100)
    estimates = [left.seconds(record(n, 30.0 if n == 1 else 2.0)) for n in range(1, 12)]
    assert estimates[0] == 99 * 30
    for number, estimate in enumerate(estimates[1:], start=2):
        assert estimate == (100 - number) * 2


def test_devices_are_named_where_a_client_is_refused_or_late():
    said = io.StringIO()
    with rounds_progress(Console(file=said, width=200), 0, 3, accuracy) as on_round:
        on_round(record(1, late=[3, 4, 5], devices={"3": "tv", "4": "phone", "5": "phone"}))
        on_round(record(2, late=[3, 4, 5], devices={"3": "tv", "4": "phone", "5": "phone"}))
        on_round(record(3, rejected={"7": "it is NaN"}, devices={"7": "old-phone"}))
    lines = said.getvalue()
    assert lines.count("late: 1 x tv, 2 x phone") == 1  # said again only if it changes
    assert "round 3: late: nobody" in lines
    assert "round 3: refused client 7 (old-phone): it is NaN" in lines
