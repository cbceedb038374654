"""The processes of a comparison: each does one run, and none outlives the comparison."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

OnRound = Callable[[int, float | None], None]
"""Told the number of a round, from 1, and its accuracy."""
STOPPED = "stopped; start the comparison again to continue"


class Processes:
    """Starts processes from several threads; once stopped, no more."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()  # else one could start just after all were told to stop
        self._stopped = False

    def run(self, folder: Path, on_round: OnRound) -> str:
        """Do the run of this folder; what went wrong, if anything did."""
        command = [sys.executable, "-m", "fedplt.compare.one", str(folder), str(os.getpid())]
        # Not a second pipe: it could fill up while the first is read.
        with TemporaryFile("w+", errors="replace") as errors:
            with self._lock:
                if self._stopped:
                    return STOPPED
                process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=errors, text=True
                )
                self._running.add(process)
            problem = ""
            with process:
                assert process.stdout is not None
                for line in process.stdout:
                    message = json.loads(line)
                    if "failed" in message:
                        problem = message["failed"].splitlines()[0]
                    else:
                        on_round(message["round"], message["accuracy"])
            with self._lock:
                self._running.discard(process)
            errors.seek(0)
            said = errors.read().strip().splitlines()
        if process.returncode in (130, -signal.SIGTERM):
            return STOPPED
        if process.returncode and not problem:  # it crashed
            problem = said[-1] if said else f"exit code {process.returncode}"
        return problem

    def stop(self) -> None:
        """What runs saves itself and ends; nothing new starts."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does: by default it would leave orphans."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
