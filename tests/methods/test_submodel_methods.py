"""HeteroFL, FedRolex and FedDrop: what each keeps, and their options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedplt import ConfigError, cut
from fedplt.client.local_training import scaled, train_client
from fedplt.client.submodels import HeldModels
from fedplt.configuration.config import ModelConfig
from fedplt.data.training_data import TrainingData
from fedplt.federation.job import make_job
from fedplt.kernels.flat_state import bind_state
from fedplt.methods import PlanRequest, make_method
from fedplt.methods.feddrop import FedDrop
from fedplt.methods.heterofl import HeteroFL
from fedplt.planning.assignment import LocalRecipe
from fedplt.planning.submodel_plans import kept_units
from tests.support.image_jobs import (
    SMALL,
    TRAINS_SUBMODELS,
    image_job,
    plan_request,
    reference,
    trained,
)
from tests.support.runs import run_job

HETEROFL, FEDROLEX, FEDDROP = (make_method(name) for name in ("heterofl", "fedrolex", "feddrop"))
widths = st.integers(1, 60)
rates = st.floats(0.01, 1)


def keep(method, width, rate, round=0, client=0, space=0):
    return method.select_units(width, rate, space=space, seed=3, round=round, client=client)


@given(widths, rates)
def test_heterofl_keeps_the_first_units(width, rate):
    kept = keep(HETEROFL, width, rate, round=9)
    assert kept.tolist() == list(range(kept_units(width, rate)))
    assert keep(FEDROLEX, width, rate).tolist() == kept.tolist()  # FedRolex starts there


@given(widths, rates)
def test_fedrolex_uses_every_unit_equally_in_a_cycle(width, rate):
    used = np.zeros(width)
    for round in range(width):
        kept = keep(FEDROLEX, width, rate, round)
        assert np.all(np.diff(kept) > 0)
        used[kept] += 1
    assert used.tolist() == [kept_units(width, rate)] * width


@given(widths, rates, rates, st.integers(0, 100))
def test_fedrolex_windows_lie_within_larger_ones(width, one, other, round):
    small, large = sorted((keep(FEDROLEX, width, s, round) for s in (one, other)), key=len)
    assert set(small) <= set(large)


def test_fedrolex_wraps_around():
    assert keep(FEDROLEX, 8, 0.5, round=6).tolist() == [0, 1, 6, 7]


def test_feddrop_draws_each_unit_alone():
    draws = [keep(FEDDROP, 50, 0.3, round=r) for r in range(200)]
    mean = np.mean([len(kept) for kept in draws])
    assert abs(mean - 15) < 4 * np.sqrt(50 * 0.3 * 0.7 / 200)
    assert keep(FEDDROP, 50, 0.3, 4).tolist() == keep(FEDDROP, 50, 0.3, 4).tolist()
    others = [keep(FEDDROP, 50, 0.3, 4, client=1), keep(FEDDROP, 50, 0.3, 4, space=1)]
    assert all(kept.tolist() != keep(FEDDROP, 50, 0.3, 4).tolist() for kept in others)
    assert keep(FEDDROP, 50, 1.0).tolist() == list(range(50))


def test_feddrop_never_leaves_a_layer_empty():
    assert all(len(keep(FEDDROP, 3, 1e-6, round=r)) == 1 for r in range(50))


def features(model, images):
    """What the classifier takes in."""
    seen = []
    hook = model.get_submodule("fc").register_forward_pre_hook(lambda m, i: seen.append(i[0]))
    model.eval()
    with torch.no_grad():
        model(images)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("method", TRAINS_SUBMODELS)
def test_shortcuts_lead_held_channels_to_their_own_place(method):
    """A residual network whose convolutions are zero passes its stem's channels on."""
    made = image_job(method, "resnet8", ratios=[0.3])
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if "conv" in name:
                parameter.zero_()
        made.model.stem_norm.bias.fill_(3.0)
    state, images = bind_state(made.model, made.layers), torch.randn(2, 1, 8, 8)
    whole = features(made.model, images)
    assert (whole[:, :16] > 0).all()
    num_through = 0
    for round in (0, 13, 29):
        assignment = made.plan.assignment(0, round)
        small = features(HeldModels(made.model, state).smaller(assignment).module, images)
        spaces, held = assignment.spaces.by_tensor, assignment.held
        stem, middle = (held[spaces[f"{n}.weight"].rows] for n in ("stem", "block2.conv2"))
        last = held[spaces["block3.conv2.weight"].rows]
        through = np.isin(last, stem) & np.isin(last, middle)
        num_through += int(through.sum())
        expected = whole[:, last] * torch.from_numpy(through)
        assert torch.allclose(small, expected, atol=1e-6)
    assert num_through


def test_the_scaler_divides_in_training_only():
    made = image_job("heterofl", "resnet8", ratios=[0.2])
    assignment = made.plan.assignment(0)
    assert 0 < assignment.rate < 1
    state = torch.zeros(made.layers.state_size)
    small = HeldModels(made.model, state).smaller(assignment).module
    normed = assignment.scaled_modules(made.recipe.scaler)
    assert "stem" in normed and "fc" not in normed
    seen = {}
    stem = small.get_submodule("stem")
    nn.init.ones_(stem.weight)
    nn.init.zeros_(stem.bias)
    small.get_submodule("stem_norm").register_forward_pre_hook(
        lambda module, inputs: seen.__setitem__(module.training, inputs[0])
    )
    with scaled(small, assignment, made.recipe):
        for mode in (True, False):
            small.train(mode)
            small(torch.ones(2, 1, 8, 8))
    assert torch.allclose(seen[True], seen[False] / assignment.rate)
    assert not stem._forward_hooks


def test_who_is_scaled():
    chain = image_job("heterofl", "fcn", ratios=[0.2])
    assignment = chain.plan.assignment(0)
    assert assignment.scaled_modules(chain.recipe.scaler) == []  # no norm follows
    assert assignment.scaled_modules(make_method("heterofl", {"scaler": "all"}).recipe.scaler) == [
        "fc1", "fc2",
    ]  # fmt: skip
    assert assignment.scaled_modules(FEDDROP.recipe.scaler) == ["fc2", "fc3"]  # their inputs
    assert assignment.scaled_modules(LocalRecipe().scaler) == []


def test_masked_loss_leaves_absent_classes_alone():
    """The classifier's row of a class that a client does not have gets no gradient."""

    def moved(masked):
        made = image_job("heterofl", "fcn", ratios=[1.0], options={"masked_loss": masked})
        made.samples.targets[:] = torch.arange(len(made.samples)) % 2  # never class 2
        before = made.model.fc3.weight.detach().clone()
        run_job(made)
        return (made.model.fc3.weight - before).abs().sum(1)

    assert moved(True)[2] == 0 and moved(True)[0] > 0
    assert moved(False)[2] > 0


@pytest.mark.slow
def test_static_norms_are_gathered_over_the_training_data():
    made, state = trained("heterofl", "resnet8", options={"static_norm": True})
    moving = reference("heterofl", "resnet8")
    made.model.eval()
    stem = {}
    made.model.stem.register_forward_hook(lambda m, i, o: stem.__setitem__("out", o))
    inputs, _ = made.samples.batch(torch.arange(len(made.samples)))
    with torch.no_grad():
        made.model(inputs)
    out = stem["out"].transpose(0, 1).flatten(1)
    assert torch.allclose(state["stem_norm.running_mean"], out.mean(1), atol=1e-5)
    assert torch.allclose(state["stem_norm.running_var"], out.var(1), atol=1e-5)
    assert not torch.equal(state["stem_norm.running_mean"], moving["stem_norm.running_mean"])


@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_static_norms_do_not_move_in_training(ratio):
    """One client's running statistics keep their bits; without the option they move."""

    def statistics(static):
        made = image_job("fedplt", "resnet8", ratios=[ratio], options={"static_norm": static})
        buffers = {n: b for n, b in made.model.named_buffers() if "running" in n}
        before = {name: buffer.clone() for name, buffer in buffers.items()}
        train_client(
            made.model, made.plan.assignment(0), made.samples, made.examples(0), made.training,
            learning_rate=0.1, seed=0, round=0, client=0,
        )  # fmt: skip
        assert len(buffers) == 14  # mean and variance of seven norms
        assert made.model.stem_norm.momentum == 0.1  # as it was
        return [torch.equal(buffer, before[name]) for name, buffer in buffers.items()]

    assert all(statistics(True))
    assert not any(statistics(False))


def test_the_originals_rates():
    options = {"rates": [1, 0.5, 0.25, 0.125, 0.0625]}
    plan = make_method("heterofl", options).plan(plan_request("fcn", [1.0, 0.4, 0.001]))
    assert plan.rates.tolist() == [1.0, 0.5, 0.0625]


def test_a_last_example_alone_has_no_statistics(monkeypatch):
    # 120 examples are 7 chunks and one alone
    monkeypatch.setattr("fedplt.client.evaluation.CHUNK", 17)
    made = image_job("fedavg", "fcn", options={"static_norm": True})
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    data = TrainingData(made.samples, made.validation)
    normed = make_job(made.config.model_copy(update={"model": ModelConfig()}), model, data,
                      ratios=[1.0] * 4)  # fmt: skip
    history = run_job(normed)
    assert len(history.rounds) == 2
    assert model[2].running_mean.abs().sum() > 0


def test_a_ratio_below_the_smallest_model_does_not_blow_up_the_scaler():
    plan = FedDrop().plan(plan_request("fcn", ratios=[0.001, 0.5]))
    assert plan.rates[0] == pytest.approx(1 / 12)  # the widest hidden layer has 12 units


def test_no_layer_can_always_be_trained_whole():
    made = plan_request("fcn")
    layers = cut(SMALL["fcn"][0](), torch.zeros(2, 1, 8, 8), always=["fc1"])
    asked = PlanRequest(layers, [0.5], find_spaces=made.find_spaces)
    with pytest.raises(ConfigError, match=r"'fc1' is always trained.*leave out model\.always"):
        HeteroFL().full_plan(asked)
