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


@pytest.mark.parametrize(
    ("kind", "second_moment", "value"),
    [
        ("adam", 0.034, 1.0175814),  # 0.9 * 0.01 + 0.1 * 0.25; sqrt is 0.184391
        ("yogi", 0.035, 1.0174166),  # 0.01 + 0.1 * 0.25; sqrt is 0.187083
    ],
)
def test_adaptive_steps(kind, second_moment, value):
    """The second moment starts at epsilon squared, 0.01; the mean moved the first value by 0.5."""
    optimizer = ServerOptimizer(kind, learning_rate=0.1, beta1=0.9, beta2=0.9, epsilon=0.1)
    state, memory = steps(optimizer)
    assert memory["server_m"][0].item() == pytest.approx(0.05)
    assert memory["server_v"][0].item() == pytest.approx(second_moment)
    assert state[0].item() == pytest.approx(value, abs=1e-6)  # 1 + 0.1 * 0.05 / (sqrt + 0.1)


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_what_nobody_trained_and_statistics_are_left_alone(kind):
    optimizer = ServerOptimizer(kind)
    state, memory = optimizer.step(LAYERS, OLD, MEAN, TOUCHED.clone, optimizer.start(LAYERS))
    assert torch.signbit(state[2])
    assert state[3:].equal(MEAN[3:])  # statistics are taken as they are
    assert memory["server_m"][2:].abs().sum() == 0
