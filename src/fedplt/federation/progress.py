"""Progress of a run: a live line on a terminal, plain lines in a log file.

The command line and Python show the same progress.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedplt.client import MetricInfo
from fedplt.federation.job import Job
from fedplt.federation.loop import OnRound
from fedplt.federation.run_folder.records import RoundRecord
from fedplt.text import bytes_text, duration_text

LOG_SECONDS = 5.0
RECENT_ROUNDS = 20
"""The time left is estimated from this many past rounds."""


@contextmanager
def rounds_progress(
    console: Console, done: int, rounds: int, metric: MetricInfo
) -> Iterator[OnRound]:
    """Show after every round: score, loss, bytes uploaded so far, time left."""
    left, last, late = TimeLeft(rounds), -LOG_SECONDS, Counter[str]()

    def log(record: RoundRecord) -> None:
        nonlocal last
        now, text = time.monotonic(), left.text(record)
        if record.round == rounds or (now - last >= LOG_SECONDS and record.score is not None):
            last = now
            line = f"round {record.round}/{rounds}  {_numbers(record, metric)}  {text}"
            console.print(line, soft_wrap=True, highlight=False)

    def draw(record: RoundRecord) -> None:
        if record.score is not None:
            progress.update(task, numbers=_numbers(record, metric))
        progress.update(task, completed=record.round, left=left.text(record))

    def show(record: RoundRecord) -> None:
        nonlocal late
        late = _show_absent(console, record, late)
        (draw if console.is_terminal else log)(record)

    columns = [
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[numbers]}"),
        TextColumn("{task.fields[left]}"),
    ]
    progress = Progress(*columns, console=console)
    starting = "starting (a new model is checked first)"
    task = progress.add_task("rounds", total=rounds, completed=done, numbers=starting, left="")
    with progress if console.is_terminal else nullcontext():
        yield show


def shown_progress(
    job: Job, verbose: bool | None, done: int = 0
) -> AbstractContextManager[OnRound]:
    """Progress on standard error if ``verbose``; None: only on a terminal or in a notebook.

    Without a display, refused updates become warnings.
    """
    if verbose is None:
        verbose = sys.stderr.isatty() or "ipykernel" in sys.modules
    if not verbose:
        return nullcontext(warn_of_refused)
    console = Console(stderr=True, highlight=False, markup=False)
    return rounds_progress(console, done, job.config.rounds, job.metric)


def warn_of_refused(record: RoundRecord) -> None:
    for client, reason in record.rejected.items():
        warnings.warn(f"round {record.round}: refused client {client}: {reason}", stacklevel=4)


def both(first: OnRound, second: OnRound) -> OnRound:
    def on_round(record: RoundRecord) -> None:
        first(record)
        second(record)

    return on_round


class TimeLeft:
    """Estimates the time left from the rounds themselves, not from the time before the first.

    The first round also fills caches and starts workers: it counts only until there is another.
    Rounds differ (not all are evaluated, other clients take part), so recent ones are averaged.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._seconds: list[float] = []

    def seconds(self, record: RoundRecord) -> float:
        """Seconds left after this round; call it once per round."""
        self._seconds.append(record.seconds)
        recent = self._seconds[1:][-RECENT_ROUNDS:] or self._seconds
        return (self.rounds - record.round) * sum(recent) / len(recent)

    def text(self, record: RoundRecord) -> str:
        return f"{duration_text(self.seconds(record))} left"


def _show_absent(console: Console, record: RoundRecord, shown: Counter[str]) -> Counter[str]:
    """Print refused clients, and late devices if they differ from ``shown``; return the latter."""
    for client, reason in record.rejected.items():
        device = record.devices.get(client, "")
        name = f"client {client}" + (f" ({device})" if device else "")
        console.print(f"round {record.round}: refused {name}: {reason}", soft_wrap=True)
    late = Counter(record.devices.get(str(client), "") for client in record.late)
    if late != shown:
        text = ", ".join(f"{number} x {name}" for name, number in late.items()) or "nobody"
        console.print(f"round {record.round}: late: {text}", soft_wrap=True)
    return late


def _numbers(record: RoundRecord, metric: MetricInfo) -> str:
    score = "-" if record.score is None else metric.text(record.score)
    loss = "-" if record.loss is None else f"{record.loss:.3f}"
    return f"{metric.name} {score}  loss {loss}  up {bytes_text(record.total.bytes_up)}"
