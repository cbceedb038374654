"""How the model moves: against the definitions over a kept history, and by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedplt import Layer, Layers, TensorSpec
from fedplt.server.diagnostics import CHUNK, Diagnostics
from tests.support.engines import NormsEngine, sampling_federation
from tests.support.jobs import blob_job
from tests.support.layers import fcn_layers

TWO = Layers(
    (
        Layer("a", (TensorSpec("a.w", (2, 1)), TensorSpec("a.mean", (2,), is_buffer=True)), 2),
        Layer("b", (TensorSpec("b.w", (1, 1)),), 1),
    )
)  # flat state: a.w (2), a.mean (2), b.w (1)
ALL = torch.ones(5, dtype=torch.bool)
NONE = torch.zeros(5, dtype=torch.bool)
FIRST = torch.arange(5) == 0  # of the two sub-layers of a


def test_three_rounds_by_hand():
    diagnostics = Diagnostics(TWO, window=2)
    states = [[0, 0, 0, 0, 0], [3, 4, 9, 9, 0], [3, 4, 9, 9, 2], [0, 4, 9, 9, 1]]
    states = [torch.tensor(state, dtype=torch.float32) for state in states]
    first = diagnostics.observe(states[0], states[1], ALL)
    assert first["update_magnitude"] == 25  # buffers do not count
    assert first["effective_perturbation"] == 1
    assert first["layers"]["a"] == {
        "update_magnitude": 25, "effective_perturbation": 1,
        "mean_age": 0, "max_age": 0, "never_trained": 0,
    }  # fmt: skip
    assert "effective_perturbation" not in first["layers"]["b"]  # it never moved
    assert first["layer_divergence"] == 0
    second = diagnostics.observe(states[1], states[2], NONE)
    assert second["update_magnitude"] == 4
    assert second["effective_perturbation"] == pytest.approx(math.sqrt(29) / 7)
    assert second["layers"]["b"]["max_age"] == 1
    third = diagnostics.observe(states[2], states[3], NONE)
    assert third["update_magnitude"] == 10
    # The first round has left the window: from (3, 4, 0) to (0, 4, 1), by steps of 2 and sqrt(10).
    expected = math.sqrt(10) / (2 + math.sqrt(10))
    assert third["effective_perturbation"] == pytest.approx(expected)
    assert third["layers"]["a"]["effective_perturbation"] == 1
    assert third["layers"]["b"]["effective_perturbation"] == pytest.approx(1 / 3)
    assert third["layer_divergence"] == pytest.approx(1 / 3)  # of 1 and 1/3, population


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**31), st.integers(0, 12))
def test_equals_the_definition(window, rounds, seed, resumed):
    random = np.random.default_rng(seed)
    states = random.normal(size=(rounds + 1, 5)).cumsum(axis=0).astype(np.float32)
    diagnostics = Diagnostics(TWO, window)
    where = [0, 1, 4]  # parameters
    for t in range(1, rounds + 1):
        if t == resumed:
            saved = {name: tensor.clone() for name, tensor in diagnostics.tensors().items()}
            diagnostics = Diagnostics(TWO, window)
            diagnostics.restore(saved)
        seen = diagnostics.observe(
            torch.from_numpy(states[t - 1]), torch.from_numpy(states[t]), NONE
        )
        for place, numbers in (
            (where, seen), ([0, 1], seen["layers"]["a"]), ([4], seen["layers"]["b"])
        ):  # fmt: skip
            steps = np.diff(states[:, place].astype(np.float64), axis=0)[max(0, t - window) : t]
            lengths = np.linalg.norm(steps, axis=1)
            assert numbers["update_magnitude"] == pytest.approx(lengths[-1] ** 2, rel=1e-4)
            expected = np.linalg.norm(steps.sum(axis=0)) / lengths.sum()
            assert numbers["effective_perturbation"] == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_a_straight_way_is_one_and_a_detour_is_near_zero():
    straight, around = Diagnostics(TWO, 10), Diagnostics(TWO, 10)
    for t in range(10):
        ahead = straight.observe(torch.full((5,), float(t)), torch.full((5,), t + 1.0), ALL)
        back = around.observe(torch.full((5,), t % 2.0), torch.full((5,), (t + 1) % 2.0), ALL)
    assert ahead["effective_perturbation"] == pytest.approx(1)
    assert back["effective_perturbation"] == 0


def test_ages_tell_what_is_neglected():
    diagnostics, state = Diagnostics(TWO, 1), torch.zeros(5)
    for touched in (ALL, NONE, FIRST):
        seen = diagnostics.observe(state, state, touched)["layers"]
    assert (seen["a"]["mean_age"], seen["a"]["max_age"]) == (1.0, 2)
    fresh = Diagnostics(TWO, 1)
    seen = fresh.observe(state, state, FIRST)["layers"]
    assert (seen["a"]["never_trained"], seen["b"]["never_trained"]) == (1, 1)
    assert "max_age" not in seen["b"]


def test_sub_layers_of_repeated_stretches():
    """Query, key and value: sub-layer 1 is rows 1, 3 and 5."""
    layers = Layers((Layer("qkv", (TensorSpec("w", (6, 2), repeats=3),), 2),))
    state = torch.zeros(12)
    touched = torch.arange(12) == 6  # row 3
    seen = Diagnostics(layers, 1)
    seen.observe(state, state, torch.ones(12, dtype=torch.bool))
    assert seen.observe(state, state, touched)["layers"]["qkv"]["mean_age"] == 0.5
    assert seen.tensors()["diagnostics.last_trained"].tolist() == [1, 2]


def test_threads_change_no_bit():
    layers = fcn_layers()
    before, after = torch.randn(2, layers.state_size)
    touched = torch.ones(layers.state_size, dtype=torch.bool)
    seen = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        seen.append(Diagnostics(layers, 2).observe(before, after, touched))
    torch.set_num_threads(1)
    assert seen[0] == seen[1]
    assert layers.state_size > 30 * CHUNK


@pytest.mark.parametrize("window", [1, 10])
def test_a_round_is_two_passes_over_the_parameters_whatever_the_window(window, monkeypatch):
    """And what is kept is one state per round of the window: no updates."""
    norm, seen = torch.linalg.vector_norm, []

    def counting(values, **options):
        seen.append(values.numel())
        return norm(values, **options)

    monkeypatch.setattr(torch.linalg, "vector_norm", counting)
    layers = fcn_layers()
    diagnostics = Diagnostics(layers, window)
    before, after = torch.randn(2, layers.state_size)
    touched = torch.ones(layers.state_size, dtype=torch.bool)
    for _ in range(12):
        seen.clear()
        diagnostics.observe(before, after, touched)
        assert sum(seen) == 2 * layers.size
    kept = {name: tensor.numel() for name, tensor in diagnostics.tensors().items()}
    assert kept.pop("diagnostics.states") == window * layers.state_size
    assert sum(kept.values()) < 1000


def test_runs_record_them_if_asked():
    plain = sampling_federation(rounds=2, name="all")
    assert plain.run().rounds[-1].diagnostics is None
    job = blob_job([0.1, 0.1], rounds=3, diagnostics={"enabled": True, "window": 2})
    run = type(plain)(job, NormsEngine(job))
    seen = run.run().rounds[-1]
    assert seen.diagnostics["effective_perturbation"] == pytest.approx(1)
    never = sum(layer["never_trained"] for layer in seen.diagnostics["layers"].values())
    assert never == sum(len(missing.sublayers) for missing in job.plan.uncovered) > 0
    json.dumps(seen.to_json(), allow_nan=False)


def test_a_model_that_never_moves_has_no_direction():
    state = torch.zeros(5)
    seen = Diagnostics(TWO, 3).observe(state, state, NONE)
    assert "effective_perturbation" not in seen
    assert "layer_divergence" not in seen
    assert seen["update_magnitude"] == 0
