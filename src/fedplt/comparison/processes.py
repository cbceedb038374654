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
        command = [sys.executable, "-m", "fedplt.comparison.one", str(folder), str(os.getpid())]
        log = beside(folder, ".log")
        with self._lock:
            if self._stopped:
                return STOPPED
            with log.open("ab") as output:  # a run that goes on keeps what it said
                before = output.tell()
                process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=output, text=True
                )
            self._running.add(process)
        problem = ""
        try:
            assert process.stdout is not None
            for line in process.stdout:
                message = json.loads(line)
                if "failed" in message:
                    problem = message["failed"]
                else:
                    on_round(message["round"], message["accuracy"])
        except BaseException:  # of who is told; the run saves itself
            process.terminate()
            raise
        finally:
            with process:  # waits
                pass
            with self._lock:
                self._running.discard(process)
            said = _read(log)
            if not said:
                log.unlink(missing_ok=True)
        problem = problem or _reason(process.returncode, said[before:])
        return f"{problem} (all it said is in {log})" if problem and said else problem

    def stop(self) -> None:
        """What runs saves itself and ends; nothing new starts."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


def _read(log: Path) -> bytes:
    try:
        return log.read_bytes()
    except FileNotFoundError:  # somebody cleaned up
        return b""


def _reason(code: int, said: bytes) -> str:
    """Why a process ended that did not tell; it may have said something else."""
    if code in (130, -signal.SIGTERM):
        return STOPPED
    if code < 0:
        return f"killed by signal {-code}; was memory short? Fewer processes at a time need less."
    if not code:
        return ""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"


def beside(folder: Path, ending: str) -> Path:
    """A file next to a run's folder."""
    return folder.with_name(folder.name + ending)


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
