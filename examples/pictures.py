"""The pictures in the pages of the examples, drawn from their runs.

python -m examples.pictures RUNS    (RUNS/fine_tune, RUNS/tabular, ...: what the examples wrote)
"""

import sys
from pathlib import Path

import torch

import fedplt
from examples.plan_a_fleet.train import DEADLINE, WORK, network
from fedplt.fleet import ExactWorkload
from fedplt.report.figures import comparison_figure, fleet_figure, save_figure, score_figure

EXAMPLES = Path(__file__).parent


def curves(runs: Path, draw, **labels: str):
    return draw({label: [fedplt.load_history(runs / name)] for name, label in labels.items()})


def fleet_times():
    devices = fedplt.read_fleet(EXAMPLES / "plan_a_fleet" / "devices.csv").devices
    work = ExactWorkload(fedplt.cut(network(), torch.zeros(8, 64)), **WORK)
    return fleet_figure(fedplt.plan_fleet(devices, work, deadline_seconds=DEADLINE))


def by_upload(histories):
    return comparison_figure(histories, upload_only=True)


def main(runs: Path) -> None:
    variants = {name: name for name in ("FedAvg", "FedPLT", "FedPLT, LoRA")}
    methods = {"fedplt": "FedPLT", "fedavg": "FedAvg"}
    both = {"fedplt": "FedPLT", "uniform": "Uniform (uniform.py)"}
    figures = {
        "fine_tune/accuracy.png": curves(runs / "fine_tune", by_upload, **variants),
        "film_reviews/accuracy.png": curves(runs, score_figure, film_reviews=""),
        "tabular/loss.png": curves(runs / "tabular", score_figure, **methods),
        "plan_a_fleet/times.png": fleet_times(),
        "own_parts/accuracy.png": curves(runs / "own_parts", score_figure, **both),
    }
    for name, figure in figures.items():
        save_figure(figure, EXAMPLES / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
