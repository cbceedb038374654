"""Hostile servers and archives, some of those that ``make reliability`` tries by the hundreds."""

from __future__ import annotations

from tools.reliability import hostile_downloads


def test_hostile_replies_and_archives_are_refused():
    assert hostile_downloads.run(60, seed=3) == {"attacks": 60, "held": 60}
