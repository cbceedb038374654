"""Measuring this machine; loose, for tests run on busy machines."""

from __future__ import annotations

import pytest
import torch

from fedplt import ConfigError
from fedplt.client.probing import Measurement, Probe, probe
from fedplt.cutting.example import example_model


def test_the_speed_is_the_one_that_predicts_best():
    steps = (Measurement(1.0, 1.0, 4_000_000), Measurement(0.5, 1.0, 1_000_000))
    found = Probe(0.2, steps, 8)
    assert found.flops_per_second == pytest.approx(2e6)
    assert found.predicted(steps[0]) == pytest.approx(2.0)
    assert found.mean_error == pytest.approx(0.75)  # twice too long, half too short
    assert "NOT within 15 %" in found.summary()
    exact = Probe(0.2, steps[:1], 8)
    assert exact.mean_error == pytest.approx(0)
    assert "(within 15 %)" in exact.summary()
    assert found.profile("here", 1e6, 1e6).flops_per_second == pytest.approx(2e6)


def test_probing_leaves_the_threads_alone_and_partial_training_is_faster():
    model, example, layers = example_model("fcn")
    torch.set_num_threads(2)
    found = probe(model, example, layers, ratios=(1.0, 0.06), passes=4)
    assert torch.get_num_threads() == 2
    assert 0 < found.forward_seconds < found.steps[0].seconds
    assert found.steps[1].seconds < found.steps[0].seconds
    assert found.steps[1].flops < 0.6 * found.steps[0].flops
    assert found.mean_error < 0.6  # the machine may be busy


def test_any_model_that_gives_a_tensor():
    found = probe(*example_model("text"), ratios=(1.0,), batch_size=2, passes=1, steps=1)
    assert found.steps[0].flops > 0

    class Pair(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    _, example, layers = example_model("torch.nn:Linear", LINEAR, (4,))
    with pytest.raises(ConfigError, match="not a tuple"):
        probe(Pair(4, 3), example, layers)


LINEAR = {"in_features": 4, "out_features": 3}
