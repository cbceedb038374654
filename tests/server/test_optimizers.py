"""Server optimisers, by hand."""

from __future__ import annotations

import pytest
import torch

from fedplt import Layer, Layers, TensorSpec
from fedplt.server.optimizers import ServerOptimizer

LAYERS = Layers(
    (Layer("l", (TensorSpec("w", (3,)), TensorSpec("running_mean", (3,), is_buffer=True)), 3),)
)
OLD = torch.tensor([1.0, 1.0, -0.0, 5.0, 5.0, 5.0])
MEAN = torch.tensor([1.5, 0.0, -0.0, 6.0, 6.0, 5.0])
TOUCHED = torch.tensor([True, True, False, True, True, False])


def steps(optimizer, number=1):
    state, memory = OLD, optimizer.start(LAYERS)
    for _ in range(number):
        state, memory = optimizer.step(LAYERS, state, state + (MEAN - OLD), TOUCHED.clone, memory)
    return state, memory


def test_none_takes_the_mean():
    assert steps(ServerOptimizer())[0].equal(MEAN)
    assert steps(ServerOptimizer())[1] == {}


def test_momentum():
    state, memory = steps(ServerOptimizer("momentum", learning_rate=2.0, beta1=0.5), 2)
    assert state[:2].tolist() == pytest.approx([1 + 2 * 0.5 + 2 * 0.75, 1 - 2 - 3])
    assert memory["server_m"][:3].tolist() == pytest.approx([0.75, -1.5, 0])


@pytest.mark.parametrize(("kind", "v"), [("adam", 0.0325), ("yogi", 0.035)])
def test_adaptive_steps(kind, v):
    optimizer = ServerOptimizer(kind, learning_rate=0.1, beta1=0.9, beta2=0.9, epsilon=0.1)
    state, memory = steps(optimizer)
    start = 0.1**2
    expected = 0.9 * start + 0.1 * 0.25 if kind == "adam" else start + 0.1 * 0.25
    assert memory["server_v"][0].item() == pytest.approx(expected)
    assert memory["server_v"][0].item() == pytest.approx(v + (0.0015 if kind == "adam" else 0.0))
    move = 0.1 * (0.1 * 0.5) / (expected**0.5 + 0.1)
    assert state[0].item() == pytest.approx(1 + move)


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_what_nobody_trained_and_statistics_are_left_alone(kind):
    optimizer = ServerOptimizer(kind)
    state, memory = optimizer.step(LAYERS, OLD, MEAN, TOUCHED.clone, optimizer.start(LAYERS))
    assert torch.signbit(state[2])
    assert state[3:].equal(MEAN[3:])  # statistics are taken as they are
    assert memory["server_m"][2:].abs().sum() == 0
