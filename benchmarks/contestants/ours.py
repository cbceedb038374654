"""fedplt's embedded simulator: FedAvg, FedPLT at one ratio, or the heterogeneous fleet."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.contestants import serve
from benchmarks.jobs import BATCH_SIZE, LEARNING_RATE, NUM_CLIENTS, read
from fedplt.data.samples import TensorSamples, TrainingData
from fedplt.data.splits import Split
from fedplt.federation.job import make_job
from fedplt.federation.load_config import parse_config
from fedplt.federation.loop import Federation
from fedplt.models import build_model
from fedplt.simulator.engine import SimulatorEngine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--ratios", default="1.0", help="one, or full,middle,low of the fleet")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    data = read(options.job)
    given = [float(ratio) for ratio in options.ratios.split(",")]
    if len(given) == 1:
        ratios = given * NUM_CLIENTS
    else:
        ratios = [given[0]] * 5 + [given[1]] * 15 + [given[2]] * 30
    config = parse_config(
        {
            "rounds": 1_000_000,
            "clients": {"num_clients": NUM_CLIENTS},
            "training": {"batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE},
            "engine": {"workers": options.workers},
        }
    )
    train = TensorSamples(torch.from_numpy(data.inputs), torch.from_numpy(data.labels))
    validation = TensorSamples(
        torch.from_numpy(data.validation_inputs), torch.from_numpy(data.validation_labels)
    )
    order = torch.arange(len(train)).numpy()
    job = make_job(
        config,
        build_model("fcn", {"num_inputs": data.num_inputs}, seed=1),
        TrainingData(train, validation),
        split=Split(order, data.offsets),
        ratios=ratios,
    )
    engine = SimulatorEngine(job)
    federation = Federation(job, engine)

    def one_round() -> None:
        federation.round()

    try:
        serve(one_round)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
