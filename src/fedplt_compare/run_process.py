"""One run of a comparison as a process: ``python -m fedplt_compare.run_process FOLDER PARENT``.

The configuration is in ``FOLDER.toml``. An interrupted run is continued; a finished one is not run
again. If the process PARENT ends, the run saves and ends. It reports to the parent on standard
output, as lines of JSON: ``{"round": 3, "score": 0.5}``, ``{"failed": "why"}``, and every second
``{"alive": true}``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedplt.configuration import load_config
from fedplt.engines import engine_of
from fedplt.errors import DivergedError, FedpltError
from fedplt.federation import (
    Interrupted,
    RoundRecord,
    RunFolder,
    job_from_config,
    note_processor,
    prepare_resume,
    run_job,
)
from fedplt.files import write_text
from fedplt_compare.processes import beside

PARENT_CHECK_SECONDS = 1.0


class Parent:
    """The process that started this run; it reads our standard output."""

    def __init__(self, process: int) -> None:
        self.process = process
        self._pipe = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # users' prints go to stderr

    def report(self, **message: Any) -> None:
        with suppress(OSError):  # if the parent has ended, the run must still save
            os.write(self._pipe, json.dumps(message).encode() + b"\n")

    def on_round(self, record: RoundRecord) -> None:
        self.report(round=record.round, score=record.score)

    def end_with_parent(self) -> None:
        """Report every second; when the parent ends, SIGTERM lets this process save the run."""
        while os.getppid() == self.process:
            self.report(alive=True)
            time.sleep(PARENT_CHECK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)


def run_one(path: Path, parent: Parent) -> None:
    config = load_config(beside(path, ".toml"))
    note_processor(beside(path, ".processor"))
    if begun := RunFolder.has_begun(path):
        job, _ = prepare_resume(RunFolder.open(path), lambda _: config)
    else:
        job = job_from_config(config)
    run_job(job, path, engine=engine_of(job.config), resume=begun, on_round=parent.on_round)


def main() -> int:
    parent = Parent(int(sys.argv[2]))
    threading.Thread(target=parent.end_with_parent, daemon=True).start()
    try:
        run_one(Path(sys.argv[1]), parent)
    except FedpltError as error:
        first, *more = str(error).splitlines() or [type(error).__name__]
        parent.report(failed=first)
        if isinstance(error, DivergedError):  # a second try would diverge again
            write_text(beside(Path(sys.argv[1]), ".diverged"), first)
        if more:
            sys.stderr.write(f"{error}\n")
        return 2
    except Interrupted:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
