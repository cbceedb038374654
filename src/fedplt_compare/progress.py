"""Progress of a comparison: live lines on a terminal, plain lines in a log file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedplt.client import MetricInfo
from fedplt.text import duration_text
from fedplt_compare.compare import Rounds, Watch

LOG_SECONDS = 30.0


@contextmanager
def comparison_progress(console: Console) -> Iterator[Watch]:
    """Show the total progress and that of each running run; print a line when a run ends."""
    columns = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[text]}"),
    ]
    progress = Progress(*columns, console=console, transient=True)
    try:
        yield _ShownRuns(console, progress)  # it starts with the runs: data is fetched first
    finally:
        if console.is_terminal:
            progress.stop()


class _ShownRuns(Watch):
    """Draws a bar per running run on a terminal, and prints lines into a log file."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self.console, self.progress = console, progress

    def on_begin(self, rounds: Rounds, done: Rounds, metric: MetricInfo) -> None:
        for bar in self.progress.task_ids:  # bars of earlier runs
            self.progress.remove_task(bar)
        self.rounds = {_name(*run): number for run, number in rounds.items()}
        self.done = {_name(*run): number for run, number in done.items()}
        """Rounds done per run."""
        self.scores: dict[str, str] = {}
        """The last score of each running run, as text."""
        self.total, self.metric = sum(rounds.values()), metric
        self.all = self.progress.add_task(f"all {len(done)} runs", total=self.total, text="")
        self.bars: dict[str, TaskID] = {}
        self.steps = 0
        """Rounds since the start; after the second one, since the first."""
        self.first: float | None = None
        """Time at which the first round ended."""
        self.started = self.shown = time.monotonic()
        if self.console.is_terminal:
            self.draw_all()
            self.progress.start()

    def on_start(self, label: str, seed: int) -> None:
        name = _name(label, seed)
        self.bars[name] = self.progress.add_task(
            name, total=self.rounds[name], completed=self.done[name], text="starting"
        )

    def on_round(self, label: str, seed: int, round: int, score: float | None) -> None:
        name = _name(label, seed)
        self.done[name] = round
        self.steps += 1
        if self.first is None:
            self.first = time.monotonic()
        elif self.started < self.first:  # leave out the start-up time, which is spent once
            self.started, self.steps = self.first, self.steps - 1
        if score is not None:
            self.scores[name] = self.metric.text(score)
        if self.console.is_terminal:
            text = self.scores.get(name, "")
            self.progress.update(self.bars[name], completed=round, text=text)
            self.draw_all()
        elif (now := time.monotonic()) - self.shown >= LOG_SECONDS:
            self.shown = now
            rounds = f"round {sum(self.done.values())} of {self.total}, {self.time_left()}"
            running = [f"{run}: {text}" for run, text in self.scores.items()]
            self.console.print("; ".join([rounds, *running]), soft_wrap=True, highlight=False)

    def on_end(self, label: str, seed: int, text: str) -> None:
        name = _name(label, seed)
        self.done[name] = self.rounds[name]
        score = self.scores.pop(name, "")
        line = f"{name}: {score and f'{self.metric.name} {score}, '}{text}"
        self.console.print(line, soft_wrap=True, highlight=False)
        if name in self.bars:
            self.progress.remove_task(self.bars.pop(name))
        if self.console.is_terminal:
            self.draw_all()

    def draw_all(self) -> None:
        done = sum(self.done.values())
        self.progress.update(self.all, completed=done, text=self.time_left())

    def time_left(self) -> str:
        """The time left, estimated from the rounds since this start."""
        if not self.steps:
            return ""
        left = self.total - sum(self.done.values())
        return f"{duration_text((time.monotonic() - self.started) / self.steps * left)} left"


def _name(label: str, seed: int) -> str:
    return f"{label}, seed {seed}"
