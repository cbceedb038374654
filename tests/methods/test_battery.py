"""What must hold for every method on every built-in model. New methods join by being listed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedplt import ConfigError, Plan, cut, make_plan
from fedplt.data.samples import TensorSamples, TrainingData
from fedplt.federation.job import make_job
from fedplt.federation.load_config import parse_config
from fedplt.methods import METHODS, PlanRequest, make_method
from fedplt.models import MODELS, cnn, fcn, resnet8
from fedplt.simulator.run import run_job

SMALL = {
    "fcn": (lambda: fcn(num_inputs=64, hidden=(12, 8), num_classes=3), (1, 8, 8)),
    "cnn": (lambda: cnn(image_size=8, width=4, num_classes=3), (1, 8, 8)),
    "resnet8": (lambda: resnet8(num_channels=1, num_classes=3), (1, 8, 8)),
}
RATIOS = [1.0, 0.4, 0.4, 0.1]
every_method = pytest.mark.parametrize("method", METHODS)
every_model = pytest.mark.parametrize("model", SMALL)


def test_every_built_in_model_is_covered():
    assert set(SMALL) | {"vit", "text"} == set(MODELS)


def images(number: int, seed: int) -> TensorSamples:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 3
    inputs = 0.5 * torch.randn(number, 1, 8, 8, generator=random)
    inputs[torch.arange(number), 0, 2 * labels] += 1  # a bright row tells the class
    return TensorSamples(inputs, labels)


def job(method: str, model: str, ratios=RATIOS, workers: int = 1):
    torch.manual_seed(0)
    config = parse_config(
        {
            "rounds": 2,
            "method": {"name": method},
            "model": {"name": "small", "groups": dict(MODELS[model].groups)},
            "clients": {"num_clients": len(ratios)},
            "data": {"name": "images", "alpha": 1.0},
            "training": {"batch_size": 16, "learning_rate": 0.05},
            "engine": {"workers": workers},
        }
    )
    data = TrainingData(images(120, 0), images(30, 1))
    return make_job(config, SMALL[model][0](), data, ratios=ratios)


def trained(*arguments, **options):
    made = job(*arguments, **options)
    run_job(made)
    return made, {name: value.clone() for name, value in made.model.state_dict().items()}


@every_method
@every_model
def test_ratio_one_is_fedavg_bit_for_bit(method, model):
    _, reference = trained("fedavg", model)
    _, state = trained(method, model, ratios=[1.0] * 4)
    assert all(torch.equal(value, reference[name]) for name, value in state.items())


@every_method
@every_model
def test_workers_change_no_bit(method, model):
    _, one = trained(method, model)
    _, two = trained(method, model, workers=2)
    assert all(torch.equal(value, two[name]) for name, value in one.items())


@every_method
@every_model
def test_what_nobody_trains_keeps_its_bits(method, model):
    made = job(method, model, ratios=[0.1])
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    run_job(made)
    assignment = made.plan.client(0)
    kept = {name: torch.ones(value.shape, dtype=torch.bool) for name, value in before.items()}
    for spec, start, stop, _ in made.layers.tensor_segments(assignment.slices):
        kept[spec.name].narrow(spec.axis, start, stop - start).fill_(False)
    moved = False
    for name, value in made.model.state_dict().items():
        assert torch.equal(value[kept[name]], before[name][kept[name]]), name
        moved = moved or not torch.equal(value, before[name])
    assert moved


@every_method
@every_model
def test_plans_survive_json_and_say_what_is_charged(method, model):
    layers = cut(SMALL[model][0](), torch.zeros(2, *SMALL[model][1]), groups=MODELS[model].groups)
    plan = make_method(method).plan(PlanRequest(layers, RATIOS))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    sizes = [plan.client(k).update_size for k in range(plan.num_clients)]
    assert np.array_equal(plan.update_sizes, sizes)
    for client in range(plan.num_clients):
        assert plan.client(client).ratio == pytest.approx(plan.achieved_ratios[client])


def test_fedplt_plans_the_ratios_and_fedavg_does_not(fcn):
    request = PlanRequest(fcn, [0.29, 0.06])
    assert make_method("fedplt").plan(request) == make_plan(fcn, [0.29, 0.06])
    assert make_method("fedavg").plan(request).achieved_ratios.tolist() == [1, 1]


def test_unknown_methods_and_options():
    with pytest.raises(ConfigError, match="Did you mean 'fedavg'"):
        make_method("fedagv")
    with pytest.raises(ConfigError, match=r"method\.speed: fedplt has no such option"):
        make_method("fedplt", {"speed": 1})
