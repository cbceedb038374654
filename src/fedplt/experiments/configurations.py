"""The configurations that section III of the paper compares, and its tables of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedplt.allocation import Allocation, allocation_of
from fedplt.errors import ConfigError, did_you_mean
from fedplt.federation.config import RunConfig
from fedplt.federation.load_config import override, parse_config
from fedplt.plan_summary import table


@dataclass(frozen=True)
class Configuration:
    """One way to spread what is trained over the layers; all clients use it."""

    name: str
    label: str
    layer_ratios: tuple[float, ...]

    def allocation(self, layer_sizes: Sequence[int]) -> Allocation:
        return allocation_of(layer_sizes, self.layer_ratios)


@dataclass(frozen=True)
class Study:
    """Configurations on one model and data set."""

    name: str
    title: str
    paper_sizes: tuple[int, ...]
    """Layer sizes as the paper counts them (for ResNet-8: without norms, and two biases short)."""
    layer_names: tuple[str, ...]
    configurations: tuple[Configuration, ...]
    settings: Mapping[str, Any]
    """The run configuration, but for the allocation."""

    def config(
        self, configuration: Configuration, rounds: int, seed: int, overrides: Sequence[str] = ()
    ) -> RunConfig:
        """The run of one configuration."""
        group = {"share": 1.0, "layer_ratios": list(configuration.layer_ratios)}
        values = {
            "name": f"{self.name}-{configuration.name}",
            "seed": seed,
            "rounds": rounds,
            "clients": {"num_clients": 50, "groups": [group]},
            "diagnostics": {"enabled": True},
            **self.settings,
        }
        return override(parse_config(values), overrides)

    def table(self) -> str:
        """The paper's table: Q, ratio, X and Std(X), at the paper's layer sizes."""
        header = ["configuration", "Q", "ratio", "X", "Std(X)"]
        rows = []
        for configuration in self.configurations:
            found = configuration.allocation(self.paper_sizes)
            rows.append(
                [
                    configuration.label,
                    _vector(found.layer_ratios, 2),
                    f"{100 * found.ratio:.2f} %",
                    _vector(found.contributions, 4),
                    f"{found.contributions_std:.4f}",
                ]
            )
        return f"{self.title}: {', '.join(self.layer_names)}\n{table(header, rows)}"


def _vector(values: Sequence[float], digits: int) -> str:
    return "(" + ", ".join(f"{value:.{digits}f}" for value in values) + ")"


_TRAINING = {"optimizer": "sgd", "learning_rate": 0.01, "batch_size": 64}

STUDIES = {
    study.name: study
    for study in (
        Study(
            "study-fcn",
            "FCN on Fashion-MNIST",
            (401_920, 131_328, 32_896, 1_290),
            ("fc1", "fc2", "fc3", "fc4"),
            (
                Configuration("full", "Full model", (1.0, 1.0, 1.0, 1.0)),
                Configuration("deep-heavy", "Deep-heavy", (0.08, 0.68, 0.68, 1.0)),
                Configuration("shallow-dominant", "Shallow-dominant", (0.3, 0.1, 0.1, 1.0)),
            ),
            {
                "data": {"name": "fashion-mnist", "split": "dirichlet", "alpha": 0.2},
                "model": {"name": "fcn"},
                "training": {**_TRAINING, "local_epochs": 1},
            },
        ),
        Study(
            "study-resnet",
            "ResNet-8 on CIFAR-10",
            (448, 4_640, 13_888, 55_296, 650),
            ("stem", "block1", "block2", "block3", "fc"),
            (
                Configuration("full", "Full model", (1.0, 1.0, 1.0, 1.0, 1.0)),
                # The paper prints these rounded: (0.06, 0.06, 0.12, 0.42, 1).
                Configuration("deep-heavy", "Deep-heavy", (1 / 16, 1 / 16, 1 / 8, 27 / 64, 1.0)),
                Configuration("shallow-dominant", "Shallow-dominant", (1.0, 1.0, 0.5, 0.25, 1.0)),
            ),
            {
                "data": {"name": "cifar10", "split": "dirichlet", "alpha": 0.2},
                "model": {"name": "resnet8"},
                # As in the paper, norms stay with the clients (FedBN); each client is evaluated
                # with its own, on a part of the data.
                "method": {"name": "fedplt", "local_norms": True},
                "evaluation": {"every": 5, "client_examples": 1000},
                "training": {**_TRAINING, "local_steps": 16},
            },
        ),
    )
}


def find_study(name: str) -> Study:
    if name not in STUDIES:
        raise ConfigError(f"there is no study {name!r}. {did_you_mean(name, STUDIES)}")
    return STUDIES[name]
