"""Settings that the runs of the paper's experiments share: data, fleet size, model, training.

A run has an id such as ``fashion-fcn-v1/fedavg-seed1``: a setting with its version, a contestant
and a seed. The version is raised when a change affects results, not when only the form of the
configuration changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedplt.configuration import RunConfig, parse_config

_SGD = {"optimizer": "sgd", "learning_rate": 0.01, "batch_size": 64}

PAIRS = ("fashion-fcn", "cifar-fcn", "cifar-resnet")
"""Pairs of data and model of experiments 1 and 2."""


@dataclass(frozen=True)
class Setting:
    """A run configuration without the contestant and the seed."""

    name: str
    version: int
    title: str
    rounds: int
    """Rounds in the paper."""
    seconds_per_round: float
    """Approximate seconds per round on one core (2026, AVX2), to estimate running times."""
    sections: Mapping[str, Any]

    @property
    def id(self) -> str:
        return f"{self.name}-v{self.version}"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "fashion-fcn",
            1,
            "Fashion-MNIST, FCN",
            300,
            2.2,
            {
                "data": {"name": "fashion-mnist", "split": "dirichlet", "alpha": 0.2},
                "clients": {"num_clients": 50},
                "model": {"name": "fcn"},
                "training": {**_SGD, "local_epochs": 1},
            },
        ),
        Setting(
            "cifar-fcn",
            1,
            "CIFAR-10, FCN",
            1000,
            5.0,
            {
                "data": {"name": "cifar10", "split": "dirichlet", "alpha": 0.2},
                "clients": {"num_clients": 50},
                "model": {"name": "fcn", "options": {"num_inputs": 3072}},
                "training": {**_SGD, "local_epochs": 1},
            },
        ),
        Setting(
            "cifar-resnet",
            1,
            "CIFAR-10, ResNet-8",
            # The paper does not say how many. Its budgets of equal communication are what FedPLT
            # spends in a whole run (43.75 GB in 300 rounds, 425 GB in 1,000); 5.25 GB are 297.
            300,
            100.0,
            {
                "data": {"name": "cifar10", "split": "dirichlet", "alpha": 0.2},
                "clients": {"num_clients": 50},
                "model": {"name": "resnet8"},
                # With local normalization layers, clients are evaluated one by one, each on about
                # 1,000 images, weighted by its label distribution.
                "evaluation": {"every": 5, "client_examples": 1000},
                "training": {**_SGD, "local_steps": 16},
            },
        ),
        Setting(
            "cifar-fcn-sampling",
            1,
            "CIFAR-10, FCN, sampled clients",
            500,
            16.0,
            {
                "data": {"name": "cifar10", "split": "dirichlet", "alpha": 0.1},
                "clients": {"num_clients": 100},
                "model": {"name": "fcn", "options": {"num_inputs": 3072}},
                "training": {**_SGD, "local_epochs": 3},
            },
        ),
    )
}


@dataclass(frozen=True)
class Contestant:
    """A method with its fleet and its sampling. The name is a part of the run's id."""

    name: str
    label: str
    sections: Mapping[str, Any]
    """Sections of the run configuration that override the setting's."""
    layer_ratios: tuple[float, ...] | None = None
    """The allocation of all clients, if it is given."""


@dataclass(frozen=True)
class Block:
    """One pair of data and model in an experiment."""

    experiment: str
    pair: str
    setting: Setting
    contestants: tuple[Contestant, ...]

    def config(self, contestant: Contestant, rounds: int, seed: int) -> RunConfig:
        values: dict[str, Any] = {key: dict(part) for key, part in self.setting.sections.items()}
        for key, part in contestant.sections.items():
            values[key] = {**values.get(key, {}), **part}
        values |= {"name": contestant.name, "seed": seed, "rounds": rounds}
        values["engine"] = {"workers": 1}
        return parse_config(values)

    def run_id(self, contestant: Contestant, seed: int) -> str:
        return f"{self.setting.id}/{contestant.name}-seed{seed}"


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    blocks: Mapping[str, Block]
    """Blocks by pair of data and model."""
