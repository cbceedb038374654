"""What people see while a comparison runs: live lines on a terminal, plain lines in a log file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedplt.compare.run import Watch
from fedplt.units import duration_text

LOG_SECONDS = 30.0


@contextmanager
def comparison_progress(console: Console, runs: int, rounds: int) -> Iterator[Watch]:
    """Shows how far all runs together are, and each that runs now; a line when one ends."""
    if not console.is_terminal:
        yield _Watch(console, runs, rounds)
        return
    columns = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[accuracy]}"),
        TimeRemainingColumn(compact=True),
    ]
    with Progress(*columns, console=console, transient=True) as progress:
        yield _LiveWatch(console, runs, rounds, progress)


class _Watch(Watch):
    """Lines for a log file."""

    def __init__(self, console: Console, runs: int, rounds: int) -> None:
        self.console, self.rounds, self.total = console, rounds, runs * rounds
        self.done: dict[str, int] = {}
        """Rounds of every run."""
        self.accuracy: dict[str, str] = {}
        """The last, of those that run now."""
        self.started = self.shown = time.monotonic()
        self.steps = 0

    def on_round(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        name = f"{label}, seed {seed}"
        self.done[name], self.steps = round, self.steps + 1
        if accuracy is not None:
            self.accuracy[name] = f"{100 * accuracy:.1f} %"
        self.show(name)

    def on_run(self, label: str, seed: int, text: str) -> None:
        name = f"{label}, seed {seed}"
        self.done[name] = self.rounds
        accuracy = self.accuracy.pop(name, "")
        told = f"{name}: {text}{accuracy and f', accuracy {accuracy}'}"
        self.console.print(told, soft_wrap=True, highlight=False)

    def show(self, name: str) -> None:
        now, done = time.monotonic(), sum(self.done.values())
        if now - self.shown < LOG_SECONDS:
            return
        self.shown = now
        left = duration_text((now - self.started) / self.steps * (self.total - done))
        running = "; ".join(f"{name}: {accuracy}" for name, accuracy in self.accuracy.items())
        told = f"round {done} of {self.total}, {left} left; {running}"
        self.console.print(told, soft_wrap=True, highlight=False)


class _LiveWatch(_Watch):
    """Bars on a terminal."""

    def __init__(self, console: Console, runs: int, rounds: int, progress: Progress) -> None:
        super().__init__(console, runs, rounds)
        self.progress = progress
        self.bars: dict[str, TaskID] = {}
        self.all = progress.add_task(f"all {runs} runs", total=self.total, accuracy="")

    def on_run(self, label: str, seed: int, text: str) -> None:
        super().on_run(label, seed, text)
        bar = self.bars.pop(f"{label}, seed {seed}", None)
        if bar is not None:
            self.progress.remove_task(bar)
        self.progress.update(self.all, completed=sum(self.done.values()))

    def show(self, name: str) -> None:
        if name not in self.bars:
            self.bars[name] = self.progress.add_task(name, total=self.rounds, accuracy="")
        accuracy = self.accuracy.get(name, "")
        self.progress.update(self.bars[name], completed=self.done[name], accuracy=accuracy)
        self.progress.update(self.all, completed=sum(self.done.values()))
