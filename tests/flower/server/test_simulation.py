"""Flower's own simulation of all clients: the same bits, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fedplt.api import resume, run
from fedplt.configuration.config_file import load_config
from tests.support.runs import same
from tests.support.tiny import CONFIG

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]

NORMS = ['model.name="tests.support.tiny:normed_model"', 'method={name="fedbn"}']
RUNS_OF = ("simulator", "flower")
RUNS = {
    "fedplt": [],
    "heterofl": ['method={name="heterofl"}'],
    "two phases": ['sampling={name="fedplt-ocs", budget=1.0, objective="aggregate"}'],
    "local norms": NORMS,
}


def settings(tmp_path, engine, changes=()):
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return load_config(path, ["rounds=3", f"engine.name={engine}", *changes])


def flower_processes():
    """Processes of Flower and Ray that run at the moment; zombies do not."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"fedplt-flower-" in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("name", RUNS)
def test_same_bits_as_the_simulator(name, tmp_path):
    before = flower_processes()
    for engine in RUNS_OF:
        run(settings(tmp_path, engine, RUNS[name]), tmp_path / engine)
    models = [load_file(tmp_path / engine / "model.safetensors") for engine in RUNS_OF]
    assert same(*models)
    assert flower_processes() <= before


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path):
    """Stopped by Ctrl-C, continued with Flower; local states are in the checkpoint."""
    run(settings(tmp_path, "simulator", NORMS), tmp_path / "simulator")
    before = flower_processes()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedplt.cli", "run", str(tmp_path / "run.toml"),
         "--engine", "flower", "--set", "rounds=3", "--out", str(tmp_path / "flower"),
         *(part for change in NORMS for part in ("--set", change)),
         "--set", "checkpoint_every=1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    rounds = tmp_path / "flower" / "rounds.jsonl"
    deadline = time.monotonic() + 900
    while not (rounds.exists() and rounds.read_text().strip()):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode in (0, 130), said
    assert flower_processes() <= before
    if process.returncode:
        assert "stopped and saved" in said
        resume(tmp_path / "flower")
    assert same(*(load_file(tmp_path / name / "model.safetensors") for name in RUNS_OF))


def test_memory_does_not_grow(tmp_path):
    """50 simulated clients for 20 rounds."""
    used = {}

    def note(record):
        if record.round in (5, 20):
            used[record.round] = sum(map(resident, flower_processes() | {os.getpid()}))

    changes = ["rounds=20", "clients.num_clients=50", "data.min_examples=1", "data.split=iid"]
    run(settings(tmp_path, "flower", changes), on_round=note)
    assert used[20] <= 1.05 * used[5]


def resident(process):
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
