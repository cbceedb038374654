"""Progress of a run that is started from Python: shown on a terminal and in a notebook."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from fedplt.federation import Job, OnRound, RoundRecord
from fedplt.imports import import_object

DISPLAY = "fedplt.report.live:python_progress"
"""Imported when it is used: a program without a terminal needs no display."""


def shown_progress(
    job: Job, verbose: bool | None, done: int = 0
) -> AbstractContextManager[OnRound]:
    """Shows every round if ``verbose``; None: if there is somebody to see it.

    Without a display, refused updates become warnings.
    """
    if verbose is None:
        verbose = sys.stderr.isatty() or "ipykernel" in sys.modules
    if not verbose:
        return nullcontext(warn_of_refused)
    display: Callable[..., AbstractContextManager[OnRound]] = import_object(DISPLAY, "verbose")
    return display(done, job.config.rounds, job.metric)


def warn_of_refused(record: RoundRecord) -> None:
    for client, reason in record.rejected.items():
        warnings.warn(f"round {record.round}: refused client {client}: {reason}", stacklevel=4)


def both(first: OnRound, second: OnRound) -> OnRound:
    def on_round(record: RoundRecord) -> None:
        first(record)
        second(record)

    return on_round
