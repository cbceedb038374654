"""Progress callbacks of a comparison."""

from __future__ import annotations

from collections.abc import Mapping


class Watch:
    """``compare`` calls these methods, one thread at a time; override them to show progress."""

    def on_begin(self, rounds: int, done: Mapping[tuple[str, int], int]) -> None:
        """Before anything runs: rounds per run, and rounds already done per (label, seed)."""

    def on_start(self, label: str, seed: int) -> None:
        """When a run starts or continues."""

    def on_round(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        """After every round of every run; rounds are numbered from 1."""

    def on_end(self, label: str, seed: int, text: str) -> None:
        """When a run has ended: "done", or what went wrong."""
