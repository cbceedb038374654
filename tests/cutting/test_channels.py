"""Which channels feed which columns: only what is certain, and gradients that stay right."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedplt import allocation_of, cut, make_plan, train_only
from tests.support.masked_training import OPTIMIZERS, train_masked


class Columns(nn.Module):
    """A convolution, and a Linear over the last axis of its output (as wide as it has channels)."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x):
        return self.linear(torch.relu(self.conv(x))).mean((1, 2))


class Turned(nn.Module):
    """A Linear over the last axis, then a convolution over the first."""

    def __init__(self):
        super().__init__()
        self.linear, self.conv = nn.Linear(8, 4), nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x):
        return self.conv(torch.relu(self.linear(x))).mean((2, 3))


def tokens():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Flatten(), nn.Linear(256, 5))


def flat_norm():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)
    )


def pooled():
    return nn.Sequential(nn.Linear(8, 16), nn.MaxPool1d(3, 1, 1), nn.Linear(16, 5))


def sequence_norm():
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(36, 5))


def usual_dense():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))


def usual_convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.Flatten(),
        nn.Linear(96, 5),
    )  # fmt: skip


def usual_flatten():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)
    )


UNCERTAIN = {
    "tokens": (tokens, (16, 8)),
    "columns": (Columns, (1, 8, 8)),
    "turned": (Turned, (4, 6, 8)),
    "flat norm": (flat_norm, (1, 4, 4)),
    "pooled": (pooled, (8,)),
    "sequence norm": (sequence_norm, (6, 8)),
}
CERTAIN = {
    "dense": (usual_dense, (8,), 1),
    "convolutions": (usual_convolutions, (1, 8, 8), 1),
    "flatten": (usual_flatten, (1, 8, 8), 9),
}


@pytest.mark.parametrize("name", [*UNCERTAIN, *CERTAIN])
def test_gradients_are_right_either_way(name):
    make, shape, *_ = {**UNCERTAIN, **CERTAIN}[name]
    model = make()
    layers = cut(model, torch.zeros(3, *shape))
    q = [0.3] + [1.0] * (len(layers) - 1)
    plan = make_plan(layers, [allocation_of(layers.sizes, q)] * 3)
    inputs = torch.randn(6, *shape)
    with torch.no_grad():
        outputs = model(inputs)
    targets = torch.randn_like(outputs)
    for client in range(3):
        ours, reference = copy.deepcopy(model), copy.deepcopy(model)
        with train_only(ours, plan.assignment(client)) as part:
            optimizer = OPTIMIZERS["sgd"](part.parameters())
            F.mse_loss(ours(inputs), targets).backward()
            optimizer.step()
        data = [(inputs, targets)]
        train_masked(reference, plan.assignment(client), data, OPTIMIZERS["sgd"], F.mse_loss)
        for key, value in reference.state_dict().items():
            if "num_batches" not in key:
                torch.testing.assert_close(ours.state_dict()[key], value, msg=key)


@pytest.mark.parametrize("name", UNCERTAIN)
def test_what_is_not_certain_is_left_alone(name):
    make, shape = UNCERTAIN[name]
    assert all(flow.feeder is None for flow in cut(make(), torch.zeros(3, *shape)).flow)


@pytest.mark.parametrize("name", CERTAIN)
def test_the_usual_ways_are_found(name):
    make, shape, columns = CERTAIN[name]
    flow = cut(make(), torch.zeros(3, *shape)).flow
    assert columns in [module.columns for module in flow if module.feeder == "0"]
