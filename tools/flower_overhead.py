"""What does Flower's simulation add to a round? Measured against the simulator, round by round.

    python tools/flower_overhead.py [--clients 20] [--rounds 20]

The same small job runs on both engines, started here, one round of each in turn; clients take
one step each, so that little but the engines' own work is left. Shown are medians. Stop what else
runs on the machine first.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack, closing

import torch

from fedplt.configuration import parse_config
from fedplt.data import TensorSamples, TrainingData
from fedplt.engines.simulator import SimulatorEngine
from fedplt.federation import Federation, processor_name
from fedplt.federation.start import job_of
from fedplt_flower import FlowerSimulation

EXAMPLES = 64
"""Of each client: one step."""
MAX_CLIENTS = 100
WARM_UP = 3
"""Rounds that are not counted: Ray starts its processes in the first ones."""
ENGINES = {"simulator": SimulatorEngine, "flower": FlowerSimulation}


def data() -> TrainingData:
    """Noise, imported by Flower's processes under this name."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES * MAX_CLIENTS, 784, generator=random)
    samples = TensorSamples(inputs, torch.arange(len(inputs)) % 10)
    few = TensorSamples(inputs[:100], torch.arange(100) % 10)
    return TrainingData(samples, few, few)


def measure(clients: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, by engine."""
    found: dict[str, list[float]] = {name: [] for name in ENGINES}
    with ExitStack() as running:
        federations = {}
        for name, make in ENGINES.items():
            job = job_of(settings(name, clients, rounds))
            engine = running.enter_context(closing(make(job)))
            federations[name] = Federation(job, engine)
        for number in range(rounds + WARM_UP):
            for name, federation in federations.items():
                seconds = federation.round().seconds
                if number >= WARM_UP:
                    found[name].append(seconds)
    return found


def settings(engine: str, clients: int, rounds: int):
    return parse_config(
        {
            "rounds": rounds + WARM_UP,
            "data": {"name": "flower_overhead:data", "split": "iid"},
            "model": {"name": "fcn"},
            "clients": {"num_clients": clients, "groups": [{"share": 1.0, "ratio": 0.25}]},
            "training": {"local_steps": 1, "batch_size": EXAMPLES},
            "evaluation": {"every": rounds + WARM_UP},
            "engine": {"name": engine, "workers": 2, "check": False},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    if not 1 <= asked.clients <= MAX_CLIENTS or asked.rounds < 1:
        parser.error(f"give 1 to {MAX_CLIENTS} clients and at least one round")
    found = measure(asked.clients, asked.rounds)
    medians = {name: 1e3 * statistics.median(seconds) for name, seconds in found.items()}
    for name, seconds in found.items():
        fastest, slowest = (1e3 * of(seconds) for of in (min, max))
        print(f"{name}: {medians[name]:.0f} ms per round ({fastest:.0f} to {slowest:.0f})")
    added = medians["flower"] - medians["simulator"]
    print(
        f"Flower adds {added:.0f} ms per round, {added / asked.clients:.1f} ms per client "
        f"({medians['flower'] / medians['simulator']:.1f} times the simulator's round); "
        f"{asked.clients} clients, two processes, model fcn at ratio 0.25, {processor_name()}"
    )


if __name__ == "__main__":
    main()
