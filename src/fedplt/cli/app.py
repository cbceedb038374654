"""Shared by all verbs: the application, the consoles, common arguments, pictures."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedplt import __version__
from fedplt.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning on unequal devices by partial layer training (FedPLT).",
)

out = Console(highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)

Config = Annotated[Path, typer.Argument(help="A run configuration (TOML), see configs/.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. training.batch_size=32."),
]
Folder = Annotated[Path, typer.Argument(help="A run's folder.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedplt {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


NO_MATPLOTLIB = "pictures need matplotlib: pip install 'fedplt[pictures]'"


def figures() -> ModuleType:
    """The drawing module; if matplotlib is missing, the error says how to install it."""
    try:
        from fedplt.report import figures
    except ImportError as error:
        raise RunError(NO_MATPLOTLIB) from error
    return figures


def save_picture(figure: Figure, picture: Path) -> None:
    figures().save_figure(figure, picture)
    err.print(f"picture: {picture}", soft_wrap=True)
