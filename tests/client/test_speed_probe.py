"""Measuring a machine, by a clock that tells the operations instead of the time."""

from __future__ import annotations

import pytest
import torch

from fedplt import ConfigError
from fedplt.client.speed_probe import Probe, TimedStep, probe
from fedplt.cutting.find_layers import example_model
from tests.support.flops import flop_counter


def test_the_speed_is_the_one_that_predicts_best():
    steps = (TimedStep(1.0, 1.0, 4_000_000), TimedStep(0.5, 1.0, 1_000_000))
    found = Probe(0.2, steps, 8)
    assert found.flops_per_second == pytest.approx(2e6)
    assert found.predicted(steps[0]) == pytest.approx(2.0)
    assert found.mean_error == pytest.approx(0.75)  # twice too long, half too short
    assert "NOT within 15 %" in found.summary()
    exact = Probe(0.2, steps[:1], 8)
    assert exact.mean_error == pytest.approx(0)
    assert "(within 15 %)" in exact.summary()
    assert found.profile("here", 1e6, 1e6).flops_per_second == pytest.approx(2e6)


class Clock:
    """Of a machine of one GFLOP/s that is busy at first: all but the last pass are disturbed."""

    def __init__(self, counter, runs_per_pass, passes):
        self.counter, self.runs_per_pass, self.passes = counter, runs_per_pass, passes
        self.looks, self.lost = 0, 0.0

    def perf_counter(self):
        started, self.looks = self.looks % 2 == 0, self.looks + 1
        number = (self.looks - 1) // 2 // self.runs_per_pass  # 0 warms up
        if not started and number < self.passes:
            self.lost += 9.0
        return self.counter.get_total_flops() / 1e9 + self.lost


def test_the_fastest_pass_counts_and_threads_are_left_alone(monkeypatch):
    model, example, layers = example_model("fcn")
    torch.set_num_threads(2)
    with flop_counter() as counter:
        clock = Clock(counter, runs_per_pass=3, passes=4)
        monkeypatch.setattr("fedplt.client.speed_probe.time", clock)
        found = probe(model, example, layers, ratios=(1.0, 0.06), passes=4)
    assert torch.get_num_threads() == 2
    assert clock.looks == 2 * 3 * 5  # forward alone, and two ratios; once to warm up
    assert found.flops_per_second == pytest.approx(1e9, rel=1e-6)
    assert found.mean_error == pytest.approx(0, abs=1e-6)
    weights = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    assert found.forward_seconds == pytest.approx(64 * 2 * weights / 1e9)
    assert found.steps[1].flops < 0.6 * found.steps[0].flops


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
