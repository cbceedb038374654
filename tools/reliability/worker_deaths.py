"""Attack: workers of the simulator die at random points; every run must end with the same bits.

``python -m tools.reliability.worker_deaths 50 1`` attacks 50 runs with seed 1.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.support.jobs import blob_job
from tests.support.runs import final_state, same, without_time
from torch import nn


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


def _exits() -> None:
    os._exit(3)


def _child_holds_the_connection() -> None:
    """A child keeps all open files of the dead worker, so that nothing is closed."""
    if not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(3)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def _closes_the_connection() -> None:
    """The worker lives on, deaf and dumb."""
    os.closerange(3, 64)
    time.sleep(60)


WAYS: dict[str, Callable[[], None]] = {
    "SIGKILL": _killed,
    "SIGSEGV": _segfault,
    "exit": _exits,
    "child holds the connection": _child_holds_the_connection,
    "connection closed": _closes_the_connection,
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"method": {"name": "fedbn"}},
    {"method": {"name": "fedrolex", "static_norm": True}},
    {"method": {"name": "feddrop"}},
    {"sampling": {"name": "fedplt-ocs", "budget": 1.0, "objective": "aggregate"}},
    {"sampling": {"name": "ocs", "budget": 2.0, "norms": "last"}},
]


_passes = itertools.count(1)
"""Of this process; not an attribute of the model, which is put back after each client."""


class Deadly(nn.Sequential):
    """A small network that ends its worker at some of the worker's forward passes, once each."""

    def __init__(self, scratch: Path, deaths: dict[int, str]) -> None:
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.scratch, self.deaths = scratch, deaths

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if multiprocessing.parent_process() is not None:  # not where the model is tried
            number = next(_passes)
            if number in self.deaths and self._first(number):
                WAYS[self.deaths[number]]()
        return super().forward(inputs)

    def _first(self, number: int) -> bool:
        try:
            (self.scratch / str(number)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


@dataclass
class Attacked:
    """A run with deaths, beside the same run without."""

    same: bool
    deaths: int
    warnings: list[str] = field(default_factory=list)


def attack(deaths: dict[int, str], engine: dict[str, Any], settings: dict[str, Any]) -> Attacked:
    """Run with these deaths, ``{forward pass of a worker: way to die}``, and without."""

    def run(planned: dict[int, str], engine: dict[str, Any]) -> Any:
        with tempfile.TemporaryDirectory() as scratch:
            torch.manual_seed(0)
            model = Deadly(Path(scratch), planned)
            job = blob_job(model=model, engine=engine, rounds=3, **settings)
            history, state = final_state(job)
            return without_time(history), state, len(list(Path(scratch).iterdir()))

    records, state, _ = run({}, {"workers": 1})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        other_records, other_state, died = run(deaths, engine)
    deadly = [str(w.message) for w in warned if "died" in str(w.message)]
    return Attacked(records == other_records and same(state, other_state), died, deadly)


def run(count: int, seed: int) -> dict[str, int]:
    """Attack ``count`` runs."""
    draw = random.Random(seed)
    figures = {"runs": 0, "workers that died": 0, "same bits": 0}
    for _ in range(count):
        deaths = {draw.randint(1, 60): draw.choice(list(WAYS)) for _ in range(draw.randint(1, 3))}
        engine = {
            "workers": draw.randint(1, 3),
            "start_method": draw.choice(["fork"] * 9 + ["spawn"]),
        }
        found = attack(deaths, engine, draw.choice(SETTINGS))
        figures["runs"] += 1
        figures["workers that died"] += found.deaths
        figures["same bits"] += found.same
    return figures


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
