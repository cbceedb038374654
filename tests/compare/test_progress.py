"""Progress of a comparison: the time left."""

from __future__ import annotations

import io

from rich.console import Console

from fedplt.client import accuracy
from fedplt_compare.progress import comparison_progress


def test_a_comparison_does_not_count_its_start_as_rounds(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with comparison_progress(Console(file=io.StringIO())) as watch:
        watch.on_begin({("a", 1): 10}, {("a", 1): 0}, accuracy)
        now = 60.0
        watch.on_round("a", 1, 1, 0.5)
        now = 62.0
        watch.on_round("a", 1, 2, 0.5)
        assert watch.time_left() == "0:16 left"
