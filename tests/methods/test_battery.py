"""What must hold for every method on every built-in model. New methods join by being listed."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch

from fedplt import ConfigError, make_plan
from fedplt.federation.engine import Interrupted
from fedplt.methods import METHODS, PlanRequest, make_method, read_plan
from fedplt.models import MODELS
from fedplt.planning import download_bytes, exact_flops
from tests.support.image_jobs import (
    SMALL,
    TRAINS_SUBMODELS,
    image_job,
    plan_request,
    reference,
    trained,
)
from tests.support.in_process import in_process
from tests.support.layers import segments
from tests.support.runs import run_job, same

every_pair = pytest.mark.parametrize(
    ("method", "model"),
    [
        (method, model)
        for method in METHODS
        for model in SMALL
        if model != "vit" or method not in TRAINS_SUBMODELS
    ],
)


def test_every_built_in_model_is_covered():
    assert set(SMALL) | {"text"} == set(MODELS)  # text: tests/models/test_transformers_learn.py
    assert len(TRAINS_SUBMODELS) == 6


@pytest.mark.parametrize("method", TRAINS_SUBMODELS)
def test_sub_models_of_transformers_are_refused_by_name(method):
    with pytest.raises(ConfigError, match=r"sub-model cannot be cut.*Use fedplt or fedpmt"):
        image_job(method, "vit")


IGNORES_RATIOS = ("fedavg", "fedbn", "fedpart")
LESS_AT_RATIO_ONE = ("fjord", "fedpart")
"""Clients of ratio 1 train less than everything too, in some rounds."""


@pytest.mark.slow
@every_pair
def test_ratio_one_is_fedavg_bit_for_bit(method, model):
    if method in LESS_AT_RATIO_ONE:
        pytest.skip("trains less than everything at ratio 1 too")
    local_norms = METHODS[method]().local_norms  # FedBN's are compared with their like
    _, state = trained(method, model, ratios=[1.0] * 4)
    assert same(state, reference("fedavg", model, local_norms))


@pytest.mark.slow
@every_pair
def test_neither_workers_nor_a_stop_change_a_bit(method, model, tmp_path):
    settings = {"server": {"optimizer": "yogi", "learning_rate": 0.1}, "sampling": HALF}
    _, whole = trained(method, model, **settings)

    def stop(record):
        raise Interrupted

    with pytest.raises(Interrupted):
        made = image_job(method, model, **settings)
        run_job(made, tmp_path / "run", engine=in_process, on_round=stop)
    made = image_job(method, model, workers=2, **settings)
    history = run_job(made, tmp_path / "run", resume=True)
    assert [record.round for record in history.rounds] == [1, 2]
    assert same(whole, made.model.state_dict())


HALF = {"name": "uniform", "num_clients": 2}


@pytest.mark.slow
@every_pair
def test_what_nobody_trains_keeps_its_bits(method, model):
    made = image_job(method, model, ratios=[0.1])
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    run_job(made, engine=in_process)
    after = made.model.state_dict()
    kept = torch.ones(made.layers.state_size, dtype=torch.bool)
    for round in range(made.config.rounds):
        for start, stop in segments(made.plan.assignment(0, round).uploaded):
            kept[start:stop] = False
    seen, moved = set(), set()
    for offset, _, spec in made.layers.placed:
        where = kept[offset : offset + spec.num_elements].view(spec.shape)
        assert torch.equal(after[spec.name][where], before[spec.name][where]), spec.name
        if not torch.equal(after[spec.name], before[spec.name]):
            moved.add(spec.name)
        seen.add(spec.name)
    for name in before.keys() - seen:
        assert torch.equal(after[name], before[name])
    assert method in IGNORES_RATIOS or kept.any()
    assert moved


@every_pair
def test_plans_survive_json_and_say_what_is_charged(method, model):
    plan = make_method(method).full_plan(plan_request(model))
    assert read_plan(json.loads(json.dumps(plan.to_json()))) == plan
    for client in range(plan.num_clients):
        for round in range(8):
            assignment = plan.assignment(client, round)
            assert plan.in_round(round)[client].to_message() == assignment.to_message()
            size = sum(stop - start for start, stop in segments(assignment.uploaded))
            assert size == assignment.update_size == assignment.uploaded.size
            assert size <= plan.update_sizes[client]
            if not plan.costs_change:
                assert assignment.ratio == pytest.approx(plan.achieved_ratios[client])
    assert "clients" in plan.summary()


@every_pair
def test_costs_do_not_grow_when_the_ratio_falls(method, model):
    plan = make_method(method).full_plan(plan_request(model, [1.0, 0.5, 0.1]))
    costs = [
        (exact_flops(a).total, a.update_size, a.num_trained, download_bytes(a))
        for a in (plan.assignment(k) for k in range(3))
    ]
    for more, less in pairwise(costs):
        assert all(x >= y for x, y in zip(more, less, strict=True))
    if method not in IGNORES_RATIOS:
        assert costs[0][:3] > costs[2][:3]


@pytest.mark.slow
@every_pair
def test_every_method_learns(method, model):
    training = {"batch_size": 16, "learning_rate": 0.2}
    made = image_job(method, model, rounds=4, training=training, evaluation={"every": 4})
    history = run_job(made, engine=in_process)
    # Not the last round alone: with FedDrop every round is another model's.
    assert min(record.train_loss for record in history.rounds[1:]) < history.rounds[0].train_loss


def test_fedplt_plans_the_ratios_and_fedavg_does_not(fcn):
    request = PlanRequest(fcn, [0.29, 0.06])
    assert make_method("fedplt").plan(request) == make_plan(fcn, [0.29, 0.06])
    assert make_method("fedavg").plan(request).achieved_ratios.tolist() == [1, 1]


def test_unknown_methods_and_options():
    with pytest.raises(ConfigError, match="Did you mean 'fedavg'"):
        make_method("fedagv")
    with pytest.raises(ConfigError, match=r"method\.speed: fedplt has no such option"):
        make_method("fedplt", {"speed": 1})
    with pytest.raises(ConfigError, match=r"method\.masked_loss: .* but it is 'yes'"):
        make_method("heterofl", {"masked_loss": "yes"})
    with pytest.raises(ConfigError, match=r"method\.rates\.1: .* but it is 2"):
        make_method("heterofl", {"rates": [0.5, 2]})
    with pytest.raises(ConfigError, match="exclude each other"):
        make_method("fedbn", {"static_norm": True})
