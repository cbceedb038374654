"""Attack: a run is killed (SIGKILL) at random moments and resumed until it ends, to the same bits.

The command line runs in a separate process with two workers. The process alone is killed, or its
whole group. ``python -m tools.reliability.kills 20 1``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from safetensors.torch import load_file
from tests.support.processes import Forked
from tests.support.tiny import CONFIG
from tools.reliability.small_run import same_state

from fedplt.cli import main
from fedplt.federation import RunFolder

ROUNDS = 30
MAX_KILLS = 5


def run(count: int, seed: int) -> dict[str, int]:
    """Kill ``count`` runs, each up to five times."""
    draw = random.Random(seed)
    figures = {"runs": 0, "times killed": 0, "same bits": 0, "all rounds recorded": 0}
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "config.toml"
        config.write_text(CONFIG)
        began = time.monotonic()
        _wait(_start(config, Path(scratch) / "whole"))
        usual = time.monotonic() - began
        expected = load_file(Path(scratch) / "whole" / "model.safetensors")
        for number in range(count):
            folder = Path(scratch) / str(number)
            figures["times killed"] += _killed_run(config, folder, usual, draw)
            found = load_file(folder / "model.safetensors")
            rounds = [record.round for record in RunFolder.open(folder).rounds()]
            figures["runs"] += 1
            figures["same bits"] += same_state(found, expected)
            figures["all rounds recorded"] += rounds == list(range(1, ROUNDS + 1))
    return figures


def _killed_run(config: Path, folder: Path, usual: float, draw: random.Random) -> int:
    """Run to the end, with kills in between; how many there were."""
    kills = 0
    while not (folder / "result.json").is_file():
        process = _start(config, folder)
        if kills < MAX_KILLS:
            time.sleep(draw.uniform(0, usual))
            if process.poll() is None:
                kills += 1
                if draw.random() < 0.5:
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.send_signal(signal.SIGKILL)
                process.wait()
                continue
        _wait(process)
    return kills


def _start(config: Path, folder: Path) -> Forked:
    """``fedplt run``, or ``fedplt resume`` where there is something to continue."""
    words = ["run", config, "--out", folder, "--set", f"rounds={ROUNDS}"]
    if RunFolder.has_begun(folder):
        words = ["resume", folder]
    with Path(f"{folder}.log").open("a") as log:
        return Forked(main, words, stdout=log, stderr=log, start_new_session=True)


def _wait(process: Forked) -> None:
    if process.wait() != 0:
        raise AssertionError(f"the run ended with code {process.returncode}")


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2])), indent=1))
