"""The processes of a comparison: one per run, all ended before the comparison ends."""

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
"""Called after each round with its number (from 1) and its score."""
STOPPED = "stopped; start the comparison again to continue"


class Processes:
    """Starts processes, from several threads; starts none after :meth:`stop`."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()  # no process may start while stop() ends the others
        self._stopped = False

    def run(self, folder: Path, on_round: OnRound) -> str:
        """Run this folder's configuration in a process; return the problem, or ''."""
        command = [sys.executable, "-m", "fedplt.comparison.one", str(folder), str(os.getpid())]
        log = beside(folder, ".log")
        with self._lock:
            if self._stopped:
                return STOPPED
            with log.open("ab") as output:  # a continued run appends to its log
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
                    on_round(message["round"], message["score"])
        except BaseException:  # raised by on_round, or Ctrl-C: SIGTERM lets the run save
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
        return f"{problem} (its output is in {log})" if problem and said else problem

    def stop(self) -> None:
        """Ask all running processes to save and end; start no new ones."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


def _read(log: Path) -> bytes:
    try:
        return log.read_bytes()
    except FileNotFoundError:  # deleted in the meantime
        return b""


def _reason(code: int, said: bytes) -> str:
    """Why a process ended without a message: a signal, or the last line of its output."""
    if code in (130, -signal.SIGTERM):
        return STOPPED
    if code < 0:
        return f"killed by signal {-code}; out of memory? Fewer processes at a time need less."
    if not code:
        return ""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"


def beside(folder: Path, ending: str) -> Path:
    """A file next to a run's folder."""
    return folder.with_name(folder.name + ending)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does; its default would leave orphans."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
