"""Plan what each device of a fleet trains, simulate a week of it, then ask what would be best.

python -m examples.plan_a_fleet.train [FOLDER_FOR_THE_RUN]
"""

import sys
import tempfile
from pathlib import Path

import torch

import fedplt
from examples.digits import digits
from fedplt.fleet import ExactWorkload, fleet_summary
from fedplt.text import plain

HERE = Path(__file__).parent
DEADLINE = 1.0  # seconds a round may take
HOURS = 7 * 24
WORK = {"local_steps": 4, "batch_size": 16}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.ReLU(),
        torch.nn.Linear(512, 256), torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    )  # fmt: skip


def data() -> fedplt.TrainingData:
    return fedplt.TrainingData(*digits())


def main() -> None:
    train, validation = digits()
    devices = fedplt.read_fleet(HERE / "devices.csv").devices
    work = ExactWorkload(fedplt.cut(network(), train[0][:8]), **WORK)
    print(fleet_summary(fedplt.plan_fleet(devices, work, deadline_seconds=DEADLINE)), end="\n\n")

    fleet = {
        "devices": str(HERE / "devices.csv"),
        "availability": str(HERE / "availability.csv"),
        "deadline_seconds": DEADLINE,
    }
    training = {"learning_rate": 0.1, **WORK}
    folder = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
    history = fedplt.train(
        network(), train, validation, fleet=fleet, rounds=HOURS, split={"alpha": 0.5},
        training=training, evaluation={"every": 24}, out=folder / "week",
    )  # fmt: skip
    print("day  devices per round  fewest  accuracy  uploaded  all rounds took")
    for day in range(7):
        rounds = history.rounds[24 * day : 24 * (day + 1)]
        numbers, last = [r.num_clients for r in rounds], rounds[-1]
        seconds = sum(r.cost.simulated_seconds for r in rounds)
        print(
            f"{day + 1:3}{sum(numbers) / 24:19.1f}{min(numbers):8}{last.score:10.1%}"
            f"{last.total.bytes_up / 1e6:7.0f} MB{seconds:15.0f} s"
        )

    here = "examples.plan_a_fleet.train"
    config = {
        "rounds": 24, "fleet": fleet, "training": training, "evaluation": {"every": 2},
        "data": {"name": f"{here}:data", "alpha": 0.5}, "model": {"name": f"{here}:network"},
    }  # fmt: skip
    advice = fedplt.advise(config, HERE / "devices.csv", folder / "advice", seeds=[1, 2])
    print("", advice.sentence, *advice.more, "", plain(advice.tables()[0]), sep="\n")


if __name__ == "__main__":
    main()
