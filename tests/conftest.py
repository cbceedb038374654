"""Shared pieces: small models, small data, and the reference for partial training."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from fedplt import cli
from fedplt.planning.layers import Layer, Layers, TensorSpec


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def fcn_layers(num_inputs: int = 784) -> Layers:
    """The paper's FCN as plain values, without torch."""
    widths = [num_inputs, 512, 256, 128, 10]
    return Layers(
        tuple(
            Layer(
                f"fc{i}",
                (TensorSpec(f"fc{i}.weight", (b, a)), TensorSpec(f"fc{i}.bias", (b,))),
                b,
            )
            for i, (a, b) in enumerate(pairwise(widths), start=1)
        )
    )


@pytest.fixture
def fcn() -> Layers:
    return fcn_layers()


def small_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def blobs(number: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three well separated classes in six dimensions."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 3
    centres = 2 * torch.eye(6)[:3]
    return centres[labels] + 0.3 * torch.randn(number, 6, generator=random), labels


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def fedplt(monkeypatch, capfd):
    """Run a command in this process: importing torch anew takes seconds."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["fedplt", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return Done(int(exited.value.code or 0), *capfd.readouterr())

    return run
