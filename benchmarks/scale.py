"""1,000,000 clients, 1,000 per round: memory, and time per participant against 1,000 clients.

Synthetic data, 4 examples per client; the largest fleet also with the unbiased estimator, whose
divisors count all clients. ``python -m benchmarks.scale``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedplt.configuration.config_file import parse_config
from fedplt.data.samples import TensorSamples
from fedplt.data.splits import Split
from fedplt.data.training_data import TrainingData
from fedplt.engines.simulator.engine import SimulatorEngine
from fedplt.federation.job import make_job
from fedplt.federation.loop import Federation
from fedplt.models import fcn

PER_ROUND = 1000
EXAMPLES = 4
FEATURES = 16
ROUNDS = 8
FEW, MANY = 1000, 1_000_000
PLAIN = "renormalized"


def run(num_clients: int, estimator: str, connection: Any) -> None:
    """Rounds on request; answers with seconds, and with memory at the end."""
    number = num_clients * EXAMPLES
    random = torch.Generator().manual_seed(0)
    train = TensorSamples(
        torch.randn(number, FEATURES, generator=random),
        torch.randint(0, 10, (number,), generator=random),
    )
    validation = TensorSamples(train.inputs[:1000], train.targets[:1000])
    started = time.perf_counter()
    config = parse_config(
        {
            "rounds": 10**6,
            "clients": {"num_clients": num_clients},
            "sampling": {
                "name": "uniform",
                "num_clients": min(PER_ROUND, num_clients),
                "estimator": estimator,
            },
            "training": {"batch_size": EXAMPLES},
        }
    )
    ratios = np.resize([1.0, 0.29, 0.29, 0.29, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06], num_clients)
    split = Split(np.arange(number), np.arange(num_clients + 1) * EXAMPLES)
    data = TrainingData(train, validation)
    job = make_job(config, fcn(num_inputs=FEATURES), data, split=split, ratios=ratios)
    engine = SimulatorEngine(job)
    federation = Federation(job, engine)
    federation.round()
    connection.send(time.perf_counter() - started)
    while connection.recv() == "go":
        started = time.perf_counter()
        federation.round()
        connection.send(time.perf_counter() - started)
    pids = [os.getpid(), *(process.pid for process in engine._pool.processes)]
    data_bytes = train.inputs.numel() * 4 + train.targets.numel() * 8
    connection.send((sum(_proportional_kilobytes(pid) for pid in pids) / 1000, data_bytes / 1e6))
    engine.close()


def _proportional_kilobytes(pid: int | None) -> int:
    """Resident memory, shared pages divided among their users (Linux)."""
    path = Path(f"/proc/{pid}/smaps_rollup")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    fleets: dict[str, Any] = {}
    out: dict[str, Any] = {"format": 2, "per_round": PER_ROUND, "examples": EXAMPLES, "fleets": {}}
    for number, estimator in ((FEW, PLAIN), (MANY, PLAIN), (MANY, "unbiased")):
        ours, theirs = context.Pipe()
        process = context.Process(target=run, args=(number, estimator, theirs))
        process.start()
        theirs.close()  # else a process that ends by an error would be waited for
        name = str(number) if estimator == PLAIN else f"{number}, {estimator}"
        fleets[name] = (ours, process, ours.recv(), [])
    for _ in range(ROUNDS):
        for connection, _, _, seconds in fleets.values():
            connection.send("go")
            seconds.append(connection.recv())
    for name, (connection, process, start, seconds) in fleets.items():
        connection.send("stop")
        megabytes, data = connection.recv()
        process.join(30)
        each = 1000 * min(seconds) / PER_ROUND
        print(f"{name} clients: {each:.2f} ms per participating client, plan and first round "
              f"{start:.1f} s, {megabytes:.0f} MB in all ({data:.0f} MB of it data)")  # fmt: skip
        out["fleets"][name] = {
            "milliseconds_per_client": each, "start_seconds": start,
            "megabytes": megabytes, "data_megabytes": data,
        }  # fmt: skip
    few, *many = (fleet["milliseconds_per_client"] for fleet in out["fleets"].values())
    ratios = " and ".join(f"{each / few:.3f}" for each in many)
    print(f"time per participating client, {MANY:,} over {FEW:,} clients: {ratios} (unbiased)")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
