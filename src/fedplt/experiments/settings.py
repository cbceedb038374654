"""What the runs of the paper's experiments have in common: data, fleet size, model, training.

A run is found by an id of its own, such as ``fashion-fcn-v1/fedavg-seed1``: a setting with its
version, a contestant, a seed. The version is raised when what is trained changes; how a
configuration is written may change without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SGD = {"optimizer": "sgd", "learning_rate": 0.01, "batch_size": 64}


@dataclass(frozen=True)
class Setting:
    """A run configuration but for the contestant and the seed."""

    name: str
    version: int
    title: str
    rounds: int
    """Of the paper."""
    seconds_per_round: float
    """Roughly, on one core (2026, AVX2); only to estimate how long runs take."""
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
            # The paper does not say how many. Its tables speak of 5.25 GB, which is 175 rounds of
            # full training.
            200,
            100.0,
            {
                "data": {"name": "cifar10", "split": "dirichlet", "alpha": 0.2},
                "clients": {"num_clients": 50},
                "model": {"name": "resnet8"},
                # Clients with normalisation layers of their own are evaluated one by one, each on
                # about 1,000 images that follow its labels.
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
