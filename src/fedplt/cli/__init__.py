"""The command line: ``fedplt <verb>``. Each file of verbs adds its own to the application."""

from __future__ import annotations

import os
import sys

from fedplt.cli import data, model, runs
from fedplt.cli.app import app, err
from fedplt.errors import FedpltError

__all__ = ["app", "data", "main", "model", "runs"]


def main() -> None:
    """Entry point: errors of ours are one message and exit code 2, never a traceback."""
    try:
        app()
    except (FedpltError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        err.print("error: ", end="", style="bold red")
        err.print(str(error), soft_wrap=True)
        sys.exit(2)
