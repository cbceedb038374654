"""The processes of a comparison: one per run, all ended before the comparison ends."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

OnRound = Callable[[int, float | None], None]
"""Called after each round with its number (from 1) and its score."""
STOPPED = "stopped; start the comparison again to continue"
POLL_SECONDS = 0.2
END_SECONDS = 10.0
"""Seconds that a run may take to save and end before it is killed."""
SILENT_SECONDS = 60.0
MOST_DEATHS = 3
"""A run fails when its process has died this often without a new round."""


class Processes:
    """Starts processes, from several threads; starts none after :meth:`stop`."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()  # no process may start while stop() ends the others
        self._kill_at = math.inf

    def run(self, folder: Path, on_round: OnRound, timeout: float) -> str:
        """Run this folder's configuration in a process; return the problem, or ''.

        A killed process is started again and continues the run, up to ``MOST_DEATHS`` times without
        a new round. A process that reports nothing for ``timeout`` seconds, or a minute if that is
        longer (it has to start), is killed.
        """
        timeout = max(timeout, SILENT_SECONDS)
        last, deaths = 0, 0

        def count(round: int, score: float | None) -> None:
            nonlocal last, deaths
            if round > last:
                last, deaths = round, 0
            on_round(round, score)

        while True:
            problem, died = self._run(folder, count, timeout)
            deaths += 1
            if not died or deaths == MOST_DEATHS:
                return problem
            with suppress(OSError), beside(folder, ".log").open("a") as log:
                log.write(f"{problem} It is continued.\n")

    def _run(self, folder: Path, on_round: OnRound, timeout: float) -> tuple[str, bool]:
        """The problem, or '', and whether the process was killed from outside."""
        # -P: modules of the current folder are not imported before installed ones.
        command = [sys.executable, "-P", "-m", "fedplt_compare.run_process"]
        command += [str(folder), str(os.getpid())]
        log = beside(folder, ".log")
        with self._lock:
            if self._kill_at < math.inf:
                return STOPPED, False
            with log.open("ab") as output:  # a continued run appends to its log
                before = output.tell()
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output)
            self._running.add(process)
        problem, kill_at = "", math.inf
        reports = _reports(process, timeout, lambda: min(kill_at, self._kill_at))
        try:
            for report in reports:
                problem = report.get("failed", problem)
                if "round" in report:
                    on_round(report["round"], report["score"])
        except BaseException:  # raised by on_round: SIGTERM lets the run save
            process.terminate()
            kill_at = time.monotonic() + END_SECONDS
            for _ in reports:
                pass
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()
            with self._lock:
                self._running.discard(process)
            text = b""
            with suppress(FileNotFoundError):  # deleted in the meantime
                if not (text := log.read_bytes()):
                    log.unlink()
        code = process.returncode
        died = not problem and code < 0 and code != -signal.SIGTERM
        problem = problem or _reason(code, text[before:])
        if self._kill_at < math.inf and died:
            return STOPPED, False
        return (f"{problem} (its output is in {log})" if problem and text else problem), died

    def stop(self) -> None:
        """Ask all running processes to save and end, or kill them; start no new ones."""
        with self._lock:
            self._kill_at = time.monotonic() + END_SECONDS
            for process in self._running:
                process.terminate()


def _reports(
    process: subprocess.Popen[bytes], timeout: float, kill_at: Callable[[], float]
) -> Iterator[dict[str, Any]]:
    """The reports of a process until it ends, even if its children hold its output open."""
    assert process.stdout is not None
    output, heard, rest, is_closed = process.stdout.fileno(), time.monotonic(), b"", False
    while True:
        if is_closed:  # the process will end soon
            time.sleep(POLL_SECONDS)
        elif wait([output], POLL_SECONDS):
            block = os.read(output, 1 << 16)
            is_closed, heard = not block, time.monotonic()
            *lines, rest = (rest + block).split(b"\n")
            yield from map(json.loads, lines)
            continue
        if process.poll() is not None:
            return
        now = time.monotonic()
        is_silent = now > heard + timeout
        if is_silent:
            yield {"failed": f"no sign of life for {timeout:g} s (engine.timeout_seconds)"}
        if is_silent or now > kill_at():
            process.send_signal(signal.SIGKILL)


def _reason(code: int, output: bytes) -> str:
    """Why a process ended without a report: a signal, or the last line of its output."""
    if code in (130, -signal.SIGTERM):
        return STOPPED
    if code < 0:
        return f"killed by signal {-code}; out of memory? Fewer processes at a time need less."
    if not code:
        return ""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"


def beside(folder: Path, ending: str) -> Path:
    """A file next to a run's folder."""
    return folder.with_name(folder.name + ending)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, like Ctrl-C; by default it would leave orphans."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
