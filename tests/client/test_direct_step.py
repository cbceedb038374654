"""Steps of chains without autograd: the bits of steps with it, and only where nothing can tell."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedplt import allocation_of, cut, make_plan
from fedplt.client import TrainingConfig
from fedplt.client.local_training import LocalTraining, train_client
from fedplt.data.samples import TensorSamples
from fedplt.kernels import Chained
from fedplt.planning.assignment import LocalRecipe

NUM_EXAMPLES = 40


def chain(*, bias=True, last=()):
    return nn.Sequential(
        nn.Linear(12, 70, bias=bias), nn.ReLU(), nn.Linear(70, 64), nn.Linear(64, 48, bias=bias),
        nn.ReLU(), nn.Linear(48, 5), *last,
    )  # fmt: skip


def flattened():
    return nn.Sequential(nn.Flatten(), *chain())


def wide():
    """Large enough for products by oneDNN."""
    return nn.Sequential(nn.Linear(12, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.Linear(512, 5))


MODELS = {
    "chain": chain,
    "without biases": lambda: chain(bias=False),
    "ends in relu": lambda: chain(last=[nn.ReLU()]),
    "flattened": flattened,
    "wide": wide,
    "one layer": lambda: nn.Sequential(nn.Linear(12, 5)),
}


def train(model, assignment, monkeypatch, *, direct=True, targets=None, **settings):
    """The model's state afterwards, the loss, and how many steps ran without autograd."""
    random = torch.Generator().manual_seed(2)
    inputs = torch.randn(NUM_EXAMPLES, 3, 4, generator=random)
    if type(model[0]) is not nn.Flatten:
        inputs = inputs.flatten(1)
    if targets is None:
        targets = torch.randint(0, 5, (NUM_EXAMPLES,), generator=random)
    number = 0
    steps = Chained.steps

    def counted(self, *args):
        found = steps(self, *args) if direct else None

        def step(*batch):
            nonlocal number
            loss = found(*batch)
            number += loss is not None
            return loss

        return found and step

    monkeypatch.setattr(Chained, "steps", counted)
    objects = {key: settings.pop(key) for key in ("loss", "recipe") if key in settings}
    training = LocalTraining(TrainingConfig(batch_size=16, local_epochs=2, **settings), **objects)
    loss = train_client(
        model, assignment, TensorSamples(inputs, targets), range(NUM_EXAMPLES),
        training, learning_rate=0.1, seed=0, round=0, client=0,
    )  # fmt: skip
    monkeypatch.setattr(Chained, "steps", steps)
    return {name: value.clone() for name, value in model.state_dict().items()}, loss, number


@pytest.mark.parametrize("name", MODELS)
def test_the_bits_of_autograd(name, monkeypatch):
    torch.manual_seed(0)
    model = MODELS[name]()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    layers = cut(model)
    lowest = allocation_of(layers.sizes, [0.4] + [0.0] * (len(layers) - 1))
    plan = make_plan(layers, [1.0, 0.5, 0.2, lowest])
    for client in range(4):
        model.load_state_dict(start)
        ours, loss, number = train(model, plan.assignment(client), monkeypatch)
        model.load_state_dict(start)
        slow, slow_loss, none = train(model, plan.assignment(client), monkeypatch, direct=False)
        assert loss == slow_loss
        # Frozen layers above others are torch's own operations.
        assert number == (0 if client == 3 and len(layers) > 1 else 6)
        assert none == 0
        for key, value in slow.items():
            assert torch.equal(ours[key], value), key
        assert any(not torch.equal(ours[key], value) for key, value in start.items())


@contextlib.contextmanager
def nothing(model, monkeypatch):
    yield {}


@contextlib.contextmanager
def hook_on_a_layer(model, monkeypatch):
    with model[1].register_forward_hook(lambda *args: None):
        yield {}


@contextlib.contextmanager
def hook_on_the_model(model, monkeypatch):
    with model.register_forward_pre_hook(lambda *args: None):
        yield {}


@contextlib.contextmanager
def global_hook(model, monkeypatch):
    with nn.modules.module.register_module_forward_hook(lambda *args: None):
        yield {}


@contextlib.contextmanager
def patched_loss(model, monkeypatch):
    own = F.cross_entropy
    with monkeypatch.context() as patch:
        patch.setattr(F, "cross_entropy", lambda *args, **kwargs: 2 * own(*args, **kwargs))
        yield {}


@contextlib.contextmanager
def patched_call(model, monkeypatch):
    own = nn.Module.__call__
    with monkeypatch.context() as patch:
        patch.setattr(nn.Sequential, "__call__", lambda self, *args: 2 * own(self, *args))
        yield {}


@contextlib.contextmanager
def anomalies(model, monkeypatch):
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        yield {}


@contextlib.contextmanager
def shared_layer(model, monkeypatch):
    model[3].weight = model[2].weight
    yield {}


@contextlib.contextmanager
def other_settings(settings, model, monkeypatch):
    yield settings


def smoothed(outputs, targets):
    return F.cross_entropy(outputs, targets, label_smoothing=0.1)


REFUSED = {
    "hook on a layer": hook_on_a_layer,
    "hook on the model": hook_on_the_model,
    "global hook": global_hook,
    "patched loss": patched_loss,
    "patched call": patched_call,
    "anomaly mode": anomalies,
    "shared layer": shared_layer,
    **{
        name: lambda model, monkeypatch, own=own: other_settings(own, model, monkeypatch)
        for name, own in {
            "momentum": {"optimizer_options": {"momentum": 0.9}},
            "proximal term": {"proximal": 0.1},
            "micro-batches": {"micro_batch": 5},
            "masked loss": {"recipe": LocalRecipe(masked_loss=True)},
            "another loss": {"loss": smoothed},
            "soft targets": {"targets": torch.full((NUM_EXAMPLES, 5), 0.2)},
        }.items()
    },
}


def square_chain():
    return nn.Sequential(
        nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 9), nn.Linear(9, 9), nn.Linear(9, 5)
    )


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_autograd_where_it_makes_a_difference(name, monkeypatch):
    torch.manual_seed(0)
    model = square_chain()
    with REFUSED[name](model, monkeypatch) as settings:
        start = {key: value.clone() for key, value in model.state_dict().items()}
        assignment = make_plan(cut(model), [0.6]).assignment(0)
        ours, loss, number = train(model, assignment, monkeypatch, **settings)
        model.load_state_dict(start)
        slow, slow_loss, _ = train(model, assignment, monkeypatch, direct=False, **settings)
    assert number == 0
    assert loss == slow_loss
    assert all(torch.equal(ours[key], value) for key, value in slow.items())


def test_other_models(monkeypatch):
    class Called(nn.Sequential):
        def __call__(self, *args):
            return 2 * super().__call__(*args)

    dropout = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Dropout(), nn.Linear(9, 5))
    for model in (dropout, Called(*square_chain()), nn.Sequential(square_chain())):
        assignment = make_plan(cut(model, torch.zeros(2, 12)), [0.6]).assignment(0)
        assert train(model, assignment, monkeypatch)[2] == 0


def test_a_wrong_label_is_torchs_error(monkeypatch):
    model = square_chain()
    assignment = make_plan(cut(model), [1.0]).assignment(0)
    targets = torch.full((NUM_EXAMPLES,), 5)
    with pytest.raises(IndexError, match="out of bounds"):
        train(model, assignment, monkeypatch, targets=targets)
