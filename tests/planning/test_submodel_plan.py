"""Sub-models as plain values: where their numbers lie, how large they are, which rate fits."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from fedplt import CutError, PlanError, cut, train_only
from fedplt.client.submodels import HeldModels
from fedplt.cutting.coupling import find_spaces
from fedplt.kernels.flat_state import bind_state, named_tensors
from fedplt.methods import PlanRequest, make_method
from fedplt.models import ResNet8, cnn, fcn
from fedplt.planning.flops import exact_flops, paper_flops_of
from fedplt.planning.submodel_plans import (
    closest_rates,
    expected_keep_rates,
    expected_sizes,
    kept_units,
)

IMAGE = torch.zeros(2, 1, 8, 8)


def cut_model(build):
    model = build()
    layers = cut(model, IMAGE)
    return model, layers, find_spaces(model, layers, IMAGE)


BUILT = {
    "fcn": cut_model(lambda: fcn(num_inputs=64, hidden=(12, 8), num_classes=3)),
    "cnn": cut_model(lambda: cnn(image_size=8, width=4, num_classes=3)),
    "resnet8": cut_model(lambda: ResNet8(num_channels=1, num_classes=3)),
}


def request(name, ratios, seed=0):
    _, layers, spaces = BUILT[name]
    return PlanRequest(layers, ratios, seed, lambda: spaces)


@settings(max_examples=40)
@given(st.sampled_from(sorted(BUILT)), st.floats(0.01, 0.9), st.integers(0, 99))
def test_positions_are_the_held_rows_and_columns(name, ratio, round):
    _, layers, spaces = BUILT[name]
    assignment = make_method("fedrolex").plan(request(name, [ratio])).assignment(0, round)
    state = torch.arange(layers.state_size, dtype=torch.float32)
    numbers = named_tensors(layers, state)
    parts = []
    for _, _, spec in layers.placed:
        part, units = numbers[spec.name].numpy(), spaces.by_tensor[spec.name]
        if units.rows is not None:
            part = part[assignment.held[units.rows]]
        if units.columns is not None:
            width = spaces.widths[units.columns]
            split = part.reshape(len(part), width, -1)
            part = split[:, assignment.held[units.columns]]
        parts.append(part.reshape(-1))
    assert np.array_equal(np.concatenate(parts), assignment.received.positions)
    assert len(assignment.received.positions) == assignment.update_size
    kept = np.array([[len(units) for units in assignment.held]], dtype=float)
    size = spaces.num_parameters(layers, kept, squares=kept**2)[0]
    assert round_to(size) == assignment.num_trained == assignment.on_client.layers.size


def round_to(number):
    assert math.isclose(number, round(number), abs_tol=1e-6)
    return round(number)


@settings(max_examples=30)
@given(st.sampled_from(sorted(BUILT)), st.floats(0.001, 1))
def test_no_other_rate_comes_closer(name, ratio):
    plan = make_method("heterofl").plan(request(name, [ratio]))
    best = abs(plan.achieved_ratios[0] - ratio)
    assert np.all(np.abs(ratios_of_all_rates(name) - ratio) >= best - 1e-12)


@cache
def ratios_of_all_rates(name):
    _, layers, spaces = BUILT[name]
    rates = np.linspace(0.001, 1, 500)
    kept = np.array([[kept_units(w, rate) for w in spaces.widths] for rate in rates], dtype=float)
    return spaces.num_parameters(layers, kept, squares=kept**2) / layers.size


def test_only_allowed_rates():
    _, layers, spaces = BUILT["cnn"]
    rates = closest_rates(layers, spaces, np.array([1.0, 0.3, 0.001]), [1.0, 0.5, 0.25])
    assert rates.tolist() == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("name", BUILT)
def test_dropped_models_have_their_ratio_on_average(name):
    _, layers, spaces = BUILT[name]
    wanted = np.array([1.0, 0.5, 0.2])
    rates = expected_keep_rates(layers, spaces, wanted)
    assert rates[0] == 1
    assert expected_sizes(layers, spaces, rates) / layers.size == pytest.approx(wanted, abs=1e-6)
    plan = make_method("feddrop").plan(request(name, wanted.tolist(), seed=5))
    for client in range(3):
        drawn = [plan.assignment(client, round).ratio for round in range(400)]
        spread = np.std(drawn) / math.sqrt(len(drawn))
        assert abs(np.mean(drawn) - wanted[client]) <= 4 * spread + 1e-12


def test_costs_are_the_small_models():
    _, layers, spaces = BUILT["cnn"]
    assignment = make_method("heterofl").plan(request("cnn", [0.2])).assignment(0)
    held = {units.name: units for units in spaces.tensors}
    total = 0
    for flow in layers.flow:
        spec = next(t for _, _, t in layers.placed if t.name == f"{flow.name}.weight")
        size = spec.num_elements
        for space in (held[spec.name].rows, held[spec.name].columns):
            if space is not None:
                size = size * len(assignment.held[space]) // spaces.widths[space]
        first = flow.name == "conv1"  # the images need no gradient
        total += 2 * flow.positions * size * (2 if first else 3)
    assert exact_flops(assignment).total == total
    assert paper_flops_of(assignment, 7) == (2 + 4) * assignment.num_trained * 7


@pytest.mark.parametrize("name", BUILT)
def test_flops_are_what_torch_counts(name):
    model, layers, _ = BUILT[name]
    assignment = make_method("fedrolex").plan(request(name, [0.3])).assignment(0, 7)
    small = HeldModels(model, torch.zeros(layers.state_size)).smaller(assignment).module
    counter = FlopCounterMode(display=False)
    with counter:
        small(torch.zeros(5, 1, 8, 8)).sum().backward()
    assert counter.get_total_flops() == 5 * exact_flops(assignment).total


def test_a_slice_cannot_be_trained_from_it():
    model, layers, _ = BUILT["fcn"]
    bind_state(model, layers)
    plan = make_method("heterofl").plan(request("fcn", [0.2]))
    with (
        pytest.raises(CutError, match="trains a smaller model"),
        train_only(model, plan.assignment(0)),
    ):
        pass


def test_refusals():
    _, layers, _ = BUILT["fcn"]
    with pytest.raises(PlanError, match="find_spaces"):
        make_method("heterofl").plan(PlanRequest(layers, [0.5]))
    plan = make_method("heterofl").plan(request("fcn", [0.5]))
    with pytest.raises(PlanError, match="there is no client 1"):
        plan.assignment(1)
    with pytest.raises(PlanError, match=r"client 0 has ratio 0\.0"):
        make_method("heterofl").plan(request("fcn", [0.0]))


def test_a_model_without_hidden_units_is_refused():
    model, example = torch.nn.Sequential(torch.nn.Linear(4, 3)), torch.zeros(1, 4)
    layers = cut(model, example)
    asked = PlanRequest(layers, [0.5], find_spaces=lambda: find_spaces(model, layers, example))
    with pytest.raises(CutError, match="no hidden units to leave out"):
        make_method("heterofl").plan(asked)


def test_units_that_nobody_ever_holds_are_told():
    plan = make_method("heterofl").plan(request("fcn", [0.3, 0.2]))
    assert {entry.layer for entry in plan.uncovered} == {"fc1", "fc2"}
    assert "no client trains" in plan.summary()
    assert not make_method("fedrolex").plan(request("fcn", [0.3, 0.2])).uncovered
    assert not make_method("heterofl").plan(request("fcn", [1.0, 0.2])).uncovered


def test_what_is_not_shared_starts_anew_for_every_client():
    model, layers, _ = BUILT["resnet8"]
    assignment = make_method("heterofl").plan(request("resnet8", [0.3])).assignment(0)
    submodels = HeldModels(model, torch.zeros(layers.state_size))
    first = submodels.smaller(assignment).module
    first.get_submodule("stem_norm").num_batches_tracked += 5
    again = submodels.smaller(assignment).module
    assert again is first  # one of each size is kept
    assert again.get_submodule("stem_norm").num_batches_tracked == 0
    assert model.stem_norm.num_batches_tracked == 0
