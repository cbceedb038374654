"""Progress of a comparison: live lines on a terminal, plain lines in a log file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedplt.client import MetricInfo
from fedplt.comparison.run_comparison import Rounds, Watch
from fedplt.text import duration_text

LOG_SECONDS = 30.0


@contextmanager
def comparison_progress(console: Console) -> Iterator[Watch]:
    """Show the progress of all runs together and of each running one; a line when one ends."""
    if not console.is_terminal:
        yield _LogWatch(console)
        return
    columns = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[text]}"),
    ]
    progress = Progress(*columns, console=console, transient=True)
    try:
        yield _LiveWatch(console, progress)  # starts with the runs: data is fetched first
    finally:
        progress.stop()


class _LogWatch(Watch):
    """Prints lines for a log file."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rounds: dict[str, int] = {}
        self.done: dict[str, int] = {}
        """Rounds done, by run."""
        self.scores: dict[str, str] = {}
        """The last score as text, by running run."""
        self.steps = 0
        """Rounds since the start; after the second one, since the first."""
        self.first: float | None = None
        """When the first round ended."""

    def on_begin(self, rounds: Rounds, done: Rounds, metric: MetricInfo) -> None:
        self.rounds = {_name(*run): number for run, number in rounds.items()}
        self.done = {_name(*run): number for run, number in done.items()}
        self.metric, self.steps, self.first = metric, 0, None
        self.started = self.shown = time.monotonic()

    def on_round(self, label: str, seed: int, round: int, score: float | None) -> None:
        self.done[_name(label, seed)] = round
        self.steps += 1
        if self.first is None:
            self.first = time.monotonic()
        elif self.started < self.first:  # the time before is spent once, on starting
            self.started, self.steps = self.first, self.steps - 1
        if score is not None:
            self.scores[_name(label, seed)] = self.metric.text(score)
        self.show_round(_name(label, seed))

    def on_end(self, label: str, seed: int, text: str) -> None:
        name = _name(label, seed)
        self.done[name] = self.rounds[name]
        score = self.scores.pop(name, "")
        line = f"{name}: {score and f'{self.metric.name} {score}, '}{text}"
        self.console.print(line, soft_wrap=True, highlight=False)

    def time_left(self) -> str:
        """Estimated from the rounds of this start."""
        if not self.steps:
            return ""
        left = sum(self.rounds.values()) - sum(self.done.values())
        return f"{duration_text((time.monotonic() - self.started) / self.steps * left)} left"

    def show_round(self, name: str) -> None:
        now = time.monotonic()
        if now - self.shown < LOG_SECONDS:
            return
        self.shown = now
        rounds = f"round {sum(self.done.values())} of {sum(self.rounds.values())}"
        running = [f"{run}: {score}" for run, score in self.scores.items()]
        line = "; ".join([f"{rounds}, {self.time_left()}", *running])
        self.console.print(line, soft_wrap=True, highlight=False)


class _LiveWatch(_LogWatch):
    """Shows progress bars on a terminal."""

    def __init__(self, console: Console, progress: Progress) -> None:
        super().__init__(console)
        self.progress = progress
        self.bars: dict[str, TaskID] = {}

    def on_begin(self, rounds: Rounds, done: Rounds, metric: MetricInfo) -> None:
        super().on_begin(rounds, done, metric)
        for bar in self.progress.task_ids:  # of the runs before
            self.progress.remove_task(bar)
        total = sum(rounds.values())
        self.all = self.progress.add_task(f"all {len(done)} runs", total=total, text="")
        self.show_all()
        self.progress.start()

    def on_start(self, label: str, seed: int) -> None:
        name = _name(label, seed)
        self.bars[name] = self.progress.add_task(
            name, total=self.rounds[name], completed=self.done[name], text="starting"
        )

    def on_end(self, label: str, seed: int, text: str) -> None:
        super().on_end(label, seed, text)
        if _name(label, seed) in self.bars:
            self.progress.remove_task(self.bars.pop(_name(label, seed)))
        self.show_all()

    def show_round(self, name: str) -> None:
        text = self.scores.get(name, "")
        self.progress.update(self.bars[name], completed=self.done[name], text=text)
        self.show_all()

    def show_all(self) -> None:
        done = sum(self.done.values())
        self.progress.update(self.all, completed=done, text=self.time_left())


def _name(label: str, seed: int) -> str:
    return f"{label}, seed {seed}"
