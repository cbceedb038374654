"""Recurrent models in a federation, against clients that train full gradients times a mask."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedplt
from fedplt import ConfigError
from fedplt.configuration.config_file import parse_config
from fedplt.data.samples import TensorSamples
from fedplt.data.training_data import TrainingData
from fedplt.federation.job import make_job
from tests.support.image_jobs import TRAINS_SUBMODELS
from tests.support.masked_training import masks, train_masked
from tests.support.runs import run_job
from tests.support.zoo import ZOO

RATIOS = [1.0, 0.4, 0.2, 0.2]
MODELS = ["recurrent", "projected", "cells"]


def sequences(number, seed):
    """What the largest input of the first step is tells the class."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 4
    inputs = 0.3 * torch.randn(number, 5, 10, generator=random)
    inputs[torch.arange(number), :, labels] += 1
    return inputs, labels


def sequence_job(name, workers=1, method="fedplt", **training):
    torch.manual_seed(0)
    values = {
        "rounds": 2,
        "model": {"name": name},
        "clients": {"num_clients": len(RATIOS)},
        "data": {"name": "sequences", "alpha": 1.0},
        "training": {"learning_rate": 0.5, "local_steps": 1, "batch_size": "full", **training},
        "engine": {"workers": workers},
        "method": {"name": method},
    }
    data = TrainingData(TensorSamples(*sequences(80, 0)), TensorSamples(*sequences(40, 1)))
    return make_job(parse_config(values), ZOO[name][0](), data, ratios=RATIOS)


def by_hand(job):
    """Two rounds: everybody trains a copy, and each number is averaged over who trained it."""
    model = copy.deepcopy(job.model)
    sgd = {"lr": job.config.training.learning_rate}
    for round in range(2):
        old = {name: p.detach().clone() for name, p in model.named_parameters()}
        change = {name: torch.zeros_like(p) for name, p in old.items()}
        weight = {name: torch.zeros_like(p) for name, p in old.items()}
        for client in range(len(RATIOS)):
            part, examples = job.plan.assignment(client, round), job.examples(client)
            batch = job.samples.batch(torch.arange(examples.start, examples.stop))
            own = copy.deepcopy(model)
            train_masked(own, part, [batch], lambda p: torch.optim.SGD(p, **sgd), F.cross_entropy)
            for name, mask in masks(part).items():
                moved = own.get_parameter(name).detach() - old[name]
                change[name] += len(examples) * mask * moved
                weight[name] += len(examples) * mask
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(change[name] / weight[name].clamp(min=1))
    return model.state_dict()


@pytest.mark.parametrize("name", MODELS)
def test_a_run_equals_masked_training(name):
    job = sequence_job(name)
    expected, before = by_hand(job), copy.deepcopy(job.model.state_dict())
    run_job(job)
    for key, value in job.model.state_dict().items():
        torch.testing.assert_close(value, expected[key], atol=1e-6, rtol=1e-5, msg=key)
        assert not torch.equal(value, before[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_workers_change_no_bit(name):
    states = []
    for workers in (1, 2):
        job = sequence_job(name, workers, optimizer="adam", learning_rate=0.01)
        run_job(job)
        states.append(job.model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(10, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


@pytest.mark.slow
def test_small_clients_train_every_unit():
    """As one piece, an LSTM was hardly ever trained by clients of ratio 0.1."""
    model = Listener()
    before = copy.deepcopy(model.state_dict())
    history = fedplt.train(
        model, sequences(160, 0), sequences(80, 1), ratios=[0.1] * 20, rounds=10, split="iid",
        training={"learning_rate": 0.05, "optimizer": "adam", "local_steps": 4, "batch_size": 8},
        engine={"workers": 1},
    )  # fmt: skip
    moved = (model.lstm.weight_hh_l0 - before["lstm.weight_hh_l0"]).unflatten(0, (4, 16))
    assert moved.abs().amax(dim=(0, 2)).min() > 1e-3
    assert history.scores[-1] > 0.9


@pytest.mark.parametrize("method", TRAINS_SUBMODELS)
def test_sub_models_are_refused_by_name(method):
    with pytest.raises(ConfigError, match=r"'lstm' \(LSTM.* Use fedplt or fedpmt"):
        sequence_job("recurrent", method=method)
