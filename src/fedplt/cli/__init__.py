# mypy: implicit-reexport
"""The command line: ``fedplt <verb>``. Importing a module of this package registers its verbs."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from fedplt.cli import fleet, prepare, runs
from fedplt.cli.app import app, err
from fedplt.errors import FedpltError

PACKAGE = Path(__file__).parents[1]
BESIDE = ("fedplt_compare", "fedplt_flower")
"""Packages beside this one, with verbs in their module ``cli``."""
OWN = (PACKAGE, *map(PACKAGE.with_name, BESIDE))

for package in BESIDE:
    importlib.import_module(f"{package}.cli")


def main(application: typer.Typer = app) -> None:
    """Entry point: a ``FedpltError`` prints one message and exits with 2, without a traceback."""
    # Child processes, such as workers, must not search the current folder first.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    try:
        with _short_warnings():
            application()
    except (FedpltError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        err.print("error: ", end="", style="bold red")
        text = str(error)
        if isinstance(error, OSError) and error.strerror and error.filename:
            text = f"{error.filename2 or error.filename}: {error.strerror}"  # without its number
        err.print(text)
        sys.exit(2)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print fedplt's own warnings as one line each."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, *more: Any, **named: Any
    ) -> None:
        if category is UserWarning and any(map(Path(filename).is_relative_to, OWN)):
            err.print(f"warning: {message}")
        else:
            default(message, category, filename, *more, **named)

    with warnings.catch_warnings():
        default = warnings.showwarning
        warnings.filterwarnings("always", category=UserWarning, module=r"fedplt(_\w+)?\.")
        warnings.showwarning = show
        yield
