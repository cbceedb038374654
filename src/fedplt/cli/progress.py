"""Progress of downloads."""

from __future__ import annotations

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
)

from fedplt.data import Progress as OnFetch


@contextmanager
def fetch_progress(console: Console) -> Iterator[OnFetch]:
    """Show a progress bar per fetched file."""
    tasks: dict[str, TaskID] = {}
    if not console.is_terminal:

        def say(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = TaskID(len(tasks))
                console.print(f"fetching: {what}")

        yield say
        return
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn()]
    with Progress(*columns, console=console, transient=True) as progress:

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)

        yield show
