"""One script per contestant: ``python -m benchmarks.contestants.NAME JOB.npz [options]``.

Each prints ``ready`` when set up. For every line it reads, it does one round (training and
evaluation) and prints the seconds it took. At its end it may print the peak memory of its
processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def serve(one_round: Callable[[], object]) -> None:
    """Warm up with one round, then answer requests until the input ends."""
    one_round()
    wait_for_request(None)
    while True:
        started = time.perf_counter()
        one_round()
        if not wait_for_request(time.perf_counter() - started):
            return


def wait_for_request(seconds: float | None) -> bool:
    """Answer (``ready`` or the seconds) and wait; False when there is nothing more to do."""
    sys.__stdout__.write("answer ready\n" if seconds is None else f"answer {seconds}\n")
    sys.__stdout__.flush()
    return bool(sys.stdin.readline())


def answer_peaks(pids: Iterable[int | None]) -> None:
    """Answer with the peak memory of these processes, in MB (Linux)."""
    found = []
    for pid in pids:
        path = Path(f"/proc/{pid}/status")
        lines = path.read_text().splitlines() if path.exists() else []
        found += [int(line.split()[1]) // 1000 for line in lines if line.startswith("VmHWM")]
    sys.__stdout__.write(f"answer {','.join(map(str, found))}\n")
    sys.__stdout__.flush()
