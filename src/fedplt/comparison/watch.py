"""Who wants to know how a comparison goes."""

from __future__ import annotations

from collections.abc import Mapping


class Watch:
    """Told everything, by one thread at a time; this one keeps it to itself."""

    def on_begin(self, rounds: int, done: Mapping[tuple[str, int], int]) -> None:
        """Before anything runs: rounds of a run, and those that each (label, seed) has already."""

    def on_start(self, label: str, seed: int) -> None:
        """When a run starts, or goes on."""

    def on_round(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        """After every round of every run; rounds are numbered from 1."""

    def on_end(self, label: str, seed: int, text: str) -> None:
        """When a run has ended: "done", or what went wrong."""
