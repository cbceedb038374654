"""Progress callbacks of a comparison."""

from __future__ import annotations

from collections.abc import Mapping

from fedplt.client import MetricInfo


class Watch:
    """``compare`` calls these methods, one thread at a time; override them to show progress."""

    def on_begin(
        self, rounds: int, done: Mapping[tuple[str, int], int], metric: MetricInfo
    ) -> None:
        """Before anything runs: rounds per run, those done per (label, seed), the metric."""

    def on_start(self, label: str, seed: int) -> None:
        """When a run starts or continues."""

    def on_round(self, label: str, seed: int, round: int, score: float | None) -> None:
        """After every round of every run; rounds are numbered from 1."""

    def on_end(self, label: str, seed: int, text: str) -> None:
        """When a run has ended: "done", or what went wrong."""
