"""Twelve clinics predict the course of diabetes together: tabular data, an own loss and metric.

python -m examples.tabular.train [FOLDER_FOR_THE_RUNS]
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_diabetes

import fedplt

RATIOS = [1.0] * 2 + [0.3] * 4 + [0.1] * 6  # what each clinic's computer can afford
QUANTILE = 0.8  # a prediction that is too low is four times as bad as one that is too high


def pinball(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One loss per patient; smallest for the chosen quantile of what may come."""
    error = targets - outputs.squeeze(1)
    return torch.maximum(QUANTILE * error, (QUANTILE - 1) * error)


def mean_pinball(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return pinball(outputs, targets).mean()


def patients(seed: int = 0):
    """Ten measurements of 442 patients and how far the disease was a year later (25 to 346)."""
    inputs, targets = load_diabetes(return_X_y=True)
    inputs = (inputs / inputs.std(0)).astype(np.float32)
    targets = (targets / 100).astype(np.float32)  # in hundreds: networks like numbers around 1
    order = np.random.default_rng(seed).permutation(len(targets))
    train, test = order[:342], order[342:]
    train = train[np.argsort(inputs[train, 0])]  # by age: clinics have patients of different ages
    return (inputs[train], targets[train]), (inputs[test], targets[test])


def main() -> None:
    train, test = patients()
    points = fedplt.Metric(
        lambda outputs, targets: 100 * pinball(outputs, targets),
        name="pinball loss",
        direction="lower",
        unit="points",
        format=".1f",
    )
    constant = torch.full((len(test[1]), 1), float(np.quantile(train[1], QUANTILE)))
    guess = float(points.function(constant, torch.from_numpy(test[1])).mean())
    print(f"same answer for everybody: {points.text(guess)}")
    for method in ("fedplt", "fedavg"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(10, 64), torch.nn.ReLU(),
            torch.nn.Linear(64, 64), torch.nn.ReLU(),
            torch.nn.Linear(64, 1),
        )  # fmt: skip
        history = fedplt.train(
            model,
            train,
            test,
            ratios=RATIOS,
            split=np.array_split(np.arange(len(train[1])), len(RATIOS)),
            rounds=60,
            task={"name": "regression", "loss": mean_pinball, "metric": points},
            method=method,
            training={"learning_rate": 0.05, "batch_size": 8},
            out=f"{sys.argv[1]}/{method}" if sys.argv[1:] else None,
        )
        megabytes = history.rounds[-1].total.bytes_up / 1e6
        score = history.metric.text(history.final_score())
        print(f"{method}: {score} on new patients, {megabytes:.1f} MB uploaded")


if __name__ == "__main__":
    main()
