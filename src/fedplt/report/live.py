"""Progress of a run: a live line on a terminal, plain lines in a log file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fedplt.client import MetricInfo
from fedplt.data import Progress as OnFetch
from fedplt.federation import OnRound, RoundRecord
from fedplt.text import bytes_text, duration_text

LOG_SECONDS = 5.0


@contextmanager
def rounds_progress(
    console: Console, done: int, rounds: int, metric: MetricInfo
) -> Iterator[OnRound]:
    """Show after every round: score, loss, bytes uploaded so far, time left."""
    if not console.is_terminal:
        yield _log_lines(console, done, rounds, metric)
        return
    columns = [
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
    ]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("rounds", total=rounds, completed=done, numbers="starting")

        def show(record: RoundRecord) -> None:
            for client, reason in record.rejected.items():
                progress.console.print(f"round {record.round}: refused client {client}: {reason}")
            if record.score is not None:
                progress.update(task, numbers=_numbers(record, metric))
            progress.update(task, completed=record.round)

        yield show


def _log_lines(console: Console, done: int, rounds: int, metric: MetricInfo) -> OnRound:
    started, last = time.monotonic(), -LOG_SECONDS

    def show(record: RoundRecord) -> None:
        nonlocal last
        now = time.monotonic()
        for client, reason in record.rejected.items():
            console.print(
                f"round {record.round}: refused client {client}: {reason}", soft_wrap=True
            )
        if record.round < rounds and (now - last < LOG_SECONDS or record.score is None):
            return
        last = now
        left = (now - started) / max(1, record.round - done) * (rounds - record.round)
        numbers = _numbers(record, metric)
        console.print(
            f"round {record.round}/{rounds}  {numbers}  {duration_text(left)} left",
            soft_wrap=True,
            highlight=False,
        )

    return show


def _numbers(record: RoundRecord, metric: MetricInfo) -> str:
    score = "-" if record.score is None else metric.text(record.score)
    loss = "-" if record.loss is None else f"{record.loss:.3f}"
    return f"{metric.name} {score}  loss {loss}  up {bytes_text(record.total.bytes_up)}"


@contextmanager
def fetch_progress(console: Console) -> Iterator[OnFetch]:
    """Show a progress bar per fetched file."""
    tasks: dict[str, TaskID] = {}
    if not console.is_terminal:

        def say(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = TaskID(len(tasks))
                console.print(f"fetching: {what}", soft_wrap=True)

        yield say
        return
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn()]
    with Progress(*columns, console=console, transient=True) as progress:

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)

        yield show
