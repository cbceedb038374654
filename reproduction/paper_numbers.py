"""Numbers that the paper reports, with the labels of its tables in the LaTeX source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LAYER_SIZES = {
    "fashion-fcn": (401_920, 131_328, 32_896, 1_290),
    "cifar-fcn": (1_573_376, 131_328, 32_896, 1_290),
    # As printed: block 3 lacks its biases (docs/errata.md, 3).
    "cifar-resnet": (448, 4_640, 13_888, 55_296, 650),
}
"""h_l, by pair."""

STUDY_ROUNDS = {"fashion-fcn": 1000, "cifar-resnet": None}
"""Rounds in the figures of section III. For the rounds of the experiments see ``settings.py``."""

Accuracy = tuple[float, float]
"""Mean and standard deviation, in percent."""

# tab:results_exp1 and tab:results_exp2; FedAvg is the same in both.
FINAL_ACCURACY: Mapping[tuple[str, str], Mapping[str, Accuracy]] = {
    ("exp1", "fashion-fcn"): {
        "fedavg": (74.33, 9.53),
        "balanced": (77.91, 5.13),
        "mild": (77.65, 4.51),
        "moderate": (75.35, 5.35),
        "large": (76.32, 5.50),
    },
    ("exp1", "cifar-fcn"): {
        "fedavg": (47.42, 4.12),
        "balanced": (48.18, 0.43),
        "mild": (47.58, 0.56),
        "large": (45.98, 2.01),
    },
    ("exp1", "cifar-resnet"): {
        "fedavg": (79.61, 1.10),
        "balanced": (79.04, 1.22),
        "mild": (78.32, 1.87),
        "large": (77.63, 1.95),
    },
    ("exp2", "fashion-fcn"): {
        "fedavg": (74.33, 9.53),
        "fedplt": (78.08, 4.65),
        "fedpmt": (65.81, 5.8),
        "fedrolex": (74.32, 3.85),
        "feddrop": (52.88, 8.35),
        "heterofl": (16.56, 19.70),
    },
    ("exp2", "cifar-fcn"): {
        "fedavg": (47.42, 4.12),
        "fedplt": (46.56, 0.71),
        "fedpmt": (39.16, 3.47),
        "fedrolex": (37.65, 1.32),
        "feddrop": (26.60, 2.94),
        "heterofl": (34.81, 8.31),
    },
    ("exp2", "cifar-resnet"): {
        "fedavg": (79.61, 1.10),
        "fedplt": (78.21, 1.57),
        "fedpmt": (75.57, 3.04),
        "fedrolex": (9.96, 1.48),
        "feddrop": (14.53, 0.81),
        "heterofl": (46.22, 1.58),
    },
}

# tab:exp_1_setup, as a fraction
IMBALANCE: Mapping[str, Mapping[str, float]] = {
    "fashion-fcn": {"balanced": 0.0, "mild": 0.3053, "moderate": 0.665, "large": 0.8743},
    "cifar-fcn": {"balanced": 0.0, "mild": 0.1879, "large": 0.9215},
    "cifar-resnet": {"balanced": 0.0, "mild": 0.2525, "large": 0.8594},
}


@dataclass(frozen=True)
class Gains:
    """FedPLT's gains over FedAvg at one target: points, GB, TFLOP."""

    target: float
    """A fraction, bytes or FLOPs."""
    accuracy: float | None = None
    communication: float | None = None
    computation: float | None = None


# tab:effective_FedPLT: at equal accuracy, equal communication, equal computation
GAINS: Mapping[str, tuple[Gains, Gains, Gains]] = {
    "fashion-fcn": (
        Gains(0.74, None, 36.08, 31.43),
        Gains(43.75e9, 5.17, None, 6.13),
        Gains(27.5e12, 5.91, -8.27, None),
    ),
    "cifar-fcn": (
        Gains(0.47, None, 208.39, 204.44),
        Gains(425e9, 1.75, None, 68.20),
        Gains(260e12, 2.61, -90.04, None),
    ),
    # Its formula, but with the FLOPs of convolutions in place of parameters.
    "cifar-resnet": (
        Gains(0.78, None, 2.23, 396.32),
        Gains(5.25e9, 2.09, None, 151.15),
        Gains(512.5e12, 4.02, -1.29, None),
    ),
}


@dataclass(frozen=True)
class Budgets:
    """Target accuracy and communication budget of experiment 2, and the methods' results."""

    accuracy: float
    communication: float
    methods: Mapping[str, tuple[float | None, float | None, float]]
    """GB and TFLOP to the accuracy (None: never), accuracy in percent within the budget."""


# tab:exp2_target_budget
BUDGETS = {
    "cifar-fcn": Budgets(
        0.45,
        139.26e9,
        {
            "fedavg": (304.67, 233.96, 39.37),
            "fedplt": (260.26, 155.90, 40.52),
            "fedpmt": (None, None, 33.45),
            "fedrolex": (None, None, 37.65),
            "feddrop": (None, None, 26.60),
            "heterofl": (None, None, 34.81),
        },
    ),
    "cifar-resnet": Budgets(
        0.75,
        1.77e9,
        {
            "fedavg": (4.05, 511.31, 64.98),
            "fedplt": (2.72, 264.82, 71.26),
            "fedpmt": (3.82, 353.00, 70.20),
            "fedrolex": (None, None, 9.96),
            "feddrop": (None, None, 14.53),
            "heterofl": (None, None, 46.22),
        },
    ),
}

# Section VI-D, in the text: points over full-model OCS, and communication in "units".
SAMPLING_GAIN = {
    "low-ocs": -1.11,
    "low-aware": 1.29,
    "moderate-ocs": 3.51,
    "moderate-aware": 3.84,
}
SAMPLING_UNITS = {
    "full-ocs": 10_000,
    "low-ocs": 5_700,
    "low-aware": 10_000,
    "moderate-ocs": 6_375,
    "moderate-aware": 10_000,
}

# tab:Q_k4DenseMNIST and tab:Q_k4ResnetCifar: ratio in percent, Std(X)
STUDY = {
    "fashion-fcn": {
        "fedavg": (100.0, 0.278),
        "deep-heavy": (25.6, 0.224),
        "shallow-dominant": (24.4, 0.361),
    },
    "cifar-resnet": {
        "fedavg": (100.0, 0.27677),
        "deep-heavy": (34.75, 0.34878),
        "shallow-dominant": (35.38, 0.18556),
    },
}
