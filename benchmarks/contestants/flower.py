"""Flower's simulation (Ray) with two actors; needs ``flwr[simulation]``."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = f"{Path.cwd()}:{os.environ.get('PYTHONPATH', '')}"

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.contestants import flower_client, wait_for_request
from benchmarks.contestants.plain import evaluate, make_model
from benchmarks.jobs import NUM_CLIENTS, read


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    os.environ["FEDPLT_BENCH_JOB"] = sys.argv[1]
    data = read(Path(sys.argv[1]))
    validation = (
        torch.from_numpy(data.validation_inputs).split(1000),
        torch.from_numpy(data.validation_labels).split(1000),
    )
    started: list[float] = []

    def end_of_round(number: int, arrays: Any) -> MetricRecord:
        model = make_model(data.num_inputs)
        model.load_state_dict(arrays.to_torch_state_dict())
        evaluate(model, *validation)
        if number:
            seconds = time.perf_counter() - started[-1] if number > 1 else None
            if not wait_for_request(seconds):
                os._exit(0)
        started.append(time.perf_counter())
        return MetricRecord({})

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def server(grid: Any, context: Any) -> None:
        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=NUM_CLIENTS,
            min_available_nodes=NUM_CLIENTS,
        )
        state = ArrayRecord(make_model(data.num_inputs).state_dict())
        strategy.start(grid, state, num_rounds=1_000_000, evaluate_fn=end_of_round)

    run_simulation(
        app,
        flower_client.app,
        NUM_CLIENTS,
        backend_config={
            "init_args": {"num_cpus": 2},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
