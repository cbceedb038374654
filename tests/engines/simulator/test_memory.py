"""The memory of a run does not grow with its rounds."""

from __future__ import annotations

import gc
import os
from contextlib import closing
from pathlib import Path

import pytest

from fedplt.engines.simulator.engine import SimulatorEngine
from fedplt.federation.loop import Federation
from tests.support.jobs import blob_job

FIRST, LATER = 40, 200
"""Rounds until caches are full, and rounds after them."""


def resident(pid):
    """MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
def test_nothing_grows_with_the_rounds():
    job = blob_job(rounds=FIRST + LATER, method={"name": "fedplt", "preset": "recommended"})
    with closing(SimulatorEngine(job)) as engine:
        federation = Federation(job, engine)
        pids = [os.getpid(), *(process.pid for process in engine._pool.processes)]

        def after(rounds):
            for _ in range(rounds):
                federation.round()
            gc.collect()
            return [resident(pid) for pid in pids]

        first, later = after(FIRST), after(LATER)
    assert all(now - before < 4 for before, now in zip(first, later, strict=True)), (first, later)
