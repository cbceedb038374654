"""Verbs about Flower apps: write one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedplt.cli.app import Group, app, out, print_json, verb
from fedplt.errors import RunError

flower_app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Flower apps with code of your own (docs/flower.md)."
)
app.add_typer(flower_app, name="flower")


@verb(flower_app, "init")
def flower_init(
    folder: Annotated[Path, typer.Argument(help="A new folder; its name is the app's.")],
    publisher: Annotated[
        str, typer.Option(help="Your name on Flower's hub, for pyproject.toml.")
    ] = "me",
) -> None:
    """Write a Flower app that trains with FedPLT, with your own model and data to fill in.

    It runs as it is, with a synthetic data set, and passes 'flwr build'. The files have the layout
    of Flower's quickstart: task.py (model, data, training loop), client_app.py, server_app.py.
    """
    try:
        from fedplt.engines.flower.app_files import init_app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "flwr":
            raise
        raise RunError("Flower apps need Flower: pip install 'fedplt[flower]'") from error
    package = init_app(folder, publisher=publisher)
    out.print(f"wrote {folder}: it runs without changes, on a synthetic data set.")
    out.print(f"Run it: see {folder / 'README.md'}")
    out.print(f"Your model and data: {folder / package / 'task.py'}")
    print_json({"folder": str(folder), "package": package})
