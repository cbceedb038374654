"""The command line: ``fedplt <verb>``. Importing a module of this package registers its verbs."""

from __future__ import annotations

import os
import sys

from fedplt.cli import (
    comparing,
    data,
    deploy,
    fleet,
    flower,
    init,
    model,
    privacy,
    reproduce,
    runs,
    theory,
)
from fedplt.cli.app import app, err
from fedplt.errors import FedpltError

__all__ = [
    "app",
    "comparing",
    "data",
    "deploy",
    "fleet",
    "flower",
    "init",
    "main",
    "model",
    "privacy",
    "reproduce",
    "runs",
    "theory",
]


def main() -> None:
    """Entry point: a ``FedpltError`` prints one message and exits with 2, without a traceback."""
    try:
        app()
    except (FedpltError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        err.print("error: ", end="", style="bold red")
        err.print(str(error), soft_wrap=True)
        sys.exit(2)
