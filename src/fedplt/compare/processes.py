"""The processes of a comparison: each does one run, and none outlives the comparison."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOPPED = "stopped; start the comparison again to continue"


class Processes:
    """Starts processes from several threads; once stopped, no more."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()  # else one could start just after all were told to stop
        self._stopped = False

    def run(self, folder: Path) -> str:
        """Do the run of this folder; what went wrong, if anything did."""
        command = [sys.executable, "-m", "fedplt.compare.one", str(folder), str(os.getpid())]
        with self._lock:
            if self._stopped:
                return STOPPED
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            self._running.add(process)
        with process:
            _, said = process.communicate()
        with self._lock:
            self._running.discard(process)
        if process.returncode in (130, -signal.SIGTERM):
            return STOPPED
        if process.returncode:
            lines = said.strip().splitlines() or [f"exit code {process.returncode}"]
            return lines[0] if process.returncode == 2 else lines[-1]
        return ""

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
