"""Starts contestants and asks them for rounds in turn."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Contestant:
    """A name and the command that runs it."""

    name: str
    module: str
    job: str
    options: Sequence[str] = ()
    python: str = sys.executable
    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    """Of fedplt: the peak memory of the parent process and of its workers, in MB."""
    _process: subprocess.Popen[str] | None = None

    @property
    def best(self) -> float:
        return min(self.seconds)

    def start(self, jobs: Path) -> None:
        """Set up and warm up."""
        path = jobs / f"{self.job}.npz"
        command = [self.python, "-m", f"benchmarks.contestants.{self.module}", str(path)]
        self._process = subprocess.Popen(
            [*command, *self.options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def round(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self.seconds.append(float(self._answer()))

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:  # frameworks print what they like in between
            if line.startswith("answer "):
                return line.split()[1]
        raise RuntimeError(f"{self.name} ended early (exit code {self._process.wait()})")

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            if self.module == "ours" and self._process.poll() is None:
                self.peaks = [int(peak) for peak in self._answer().split(",")]
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


def race(contestants: Sequence[Contestant], jobs: Path, passes: int) -> None:
    """Start all, then let each do one round per pass while the others wait."""
    try:
        for contestant in contestants:
            print(f"starting {contestant.name} ...", flush=True)
            contestant.start(jobs)
        for number in range(1, passes + 1):
            for contestant in contestants:
                wait_until_quiet()
                contestant.round()
            times = ", ".join(f"{c.name} {c.seconds[-1]:.2f}" for c in contestants)
            print(f"pass {number}/{passes}: {times}", flush=True)
    finally:
        for contestant in contestants:
            contestant.stop()


def wait_until_quiet(limit: float = 5.0) -> None:
    """Wait (a little) until the machine is idle; Linux only."""
    if not Path("/proc/stat").exists():
        return
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        before, started = _busy(), time.monotonic()
        time.sleep(0.2)
        if (_busy() - before) / 100 / (time.monotonic() - started) < 0.2:
            return


def _busy() -> float:
    """Busy hundredths of a second of all cores together."""
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return float(sum(fields) - fields[3] - fields[4])
