"""fedplt's embedded simulator: FedAvg, FedPLT at one ratio, or the heterogeneous fleet."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from benchmarks.contestants import answer_peaks, serve
from benchmarks.jobs import (
    BATCH_SIZE,
    LEARNING_RATE,
    NUM_CLIENTS,
    RESNET_CLIENTS,
    RESNET_STEPS,
    Arrays,
    read,
)
from fedplt.configuration.config_file import parse_config
from fedplt.data.samples import TensorSamples
from fedplt.data.splits import Split
from fedplt.data.training_data import TrainingData
from fedplt.engines.simulator.engine import SimulatorEngine
from fedplt.federation.job import Job, make_job
from fedplt.federation.loop import Federation
from fedplt.models import build_model


def ratios_of(given: str, num_clients: int) -> list[float]:
    """One ratio for all, or three: of a tenth, three tenths and the other clients."""
    ratios = [float(ratio) for ratio in given.split(",")]
    if len(ratios) == 1:
        return ratios * num_clients
    few, some = max(1, num_clients // 10), 3 * num_clients // 10
    return [ratios[0]] * few + [ratios[1]] * some + [ratios[2]] * (num_clients - few - some)


def make(data: Arrays, model: str, ratios: str, workers: int) -> Job:
    """The run."""
    resnet = model == "resnet8"
    number = RESNET_CLIENTS if resnet else NUM_CLIENTS
    config = parse_config(
        {
            "rounds": 1_000_000,
            "clients": {"num_clients": number},
            "model": {"name": model},
            "training": {
                "batch_size": BATCH_SIZE,
                "learning_rate": LEARNING_RATE,
                **({"local_steps": RESNET_STEPS} if resnet else {}),
            },
            "engine": {"workers": workers},
        }
    )
    shape = (-1, 3, 32, 32) if resnet else (-1, data.num_inputs)
    train = TensorSamples(torch.from_numpy(data.inputs).view(shape), torch.from_numpy(data.labels))
    validation = TensorSamples(
        torch.from_numpy(data.validation_inputs).view(shape),
        torch.from_numpy(data.validation_labels),
    )
    return make_job(
        config,
        build_model(model, {} if resnet else {"num_inputs": data.num_inputs}, seed=1),
        TrainingData(train, validation),
        split=Split(torch.arange(len(train)).numpy(), data.offsets),
        ratios=ratios_of(ratios, number),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--ratios", default="1.0", help="one, or full,middle,low of the fleet")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", choices=["fcn", "resnet8"], default="fcn")
    options = parser.parse_args()
    job = make(read(options.job), options.model, options.ratios, options.workers)
    engine = SimulatorEngine(job)
    federation = Federation(job, engine)

    def one_round() -> None:
        federation.round()

    try:
        serve(one_round)
        answer_peaks([os.getpid(), *(process.pid for process in engine._pool.processes)])
    finally:
        engine.close()


if __name__ == "__main__":
    main()
