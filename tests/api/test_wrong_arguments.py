"""Wrong arguments of the functions of ``fedplt`` are refused in words, never with a traceback."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedplt
from tests.support.jobs import blobs

X, Y = blobs(60)


def train(**given):
    given = {"model": nn.Linear(6, 3), "data": (X, Y), "ratios": [1.0, 0.5], "rounds": 1, **given}
    settings = {"engine": {"workers": 1, "check": False}, **given}
    data = settings.pop("data")
    validation = None if isinstance(data, fedplt.TrainingData) else (X, Y)
    return fedplt.train(settings.pop("model"), data, validation, **settings)


def fails():
    raise KeyError("x")


def mean_of_all(outputs, targets):
    return outputs - 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"learning_rate": 0}, "training.learning_rate: .*it is 0"),
        ({"learning_rate": "x"}, "learning_rate: it is 'x'"),
        ({"learning_rate": ["a", 0.1]}, r"learning_rate: it is \['a', 0.1\]"),
        ({"learning_rate": [0.1, float("nan")]}, "learning_rate: .*nan"),
        ({"learning_rate": [0.1]}, r"learning_rate: it is \[0.1\]; give 2"),
        ({"learning_rate": 0.1, "training": {"learning_rate": 0.2}}, "learning_rate: .*training"),
        ({"task": 5}, "task: it is a int"),
        ({"task": fedplt.Task}, "task: it is a class"),
        ({"task": {"nam": "regression"}}, "task.nam: .*'name'"),
        ({"task": {"loss": mean_of_all}}, r"a loss is a tensor of one number"),
        ({"task": {"loss": lambda outputs, targets: 5}}, "the loss gives 5"),
        ({"training": {"augment": lambda inputs: inputs}}, r"training.augment: .*\(6,\)"),
        ({"training": {"augment": lambda inputs, generator: None}}, "training.augment: .*NoneType"),
        ({"training": {"augment": 5}}, "training.augment: it is a int"),
        ({"cut": 5}, "cut: it is a int"),
        ({"training": "x"}, "training: it is a str"),
        ({"method": 5}, "method: it is a int"),
        ({"out": 5}, "out: 5 is a int; give a path"),
        ({"on_round": None}, "on_round: it is a NoneType"),
        ({"ratios": None, "fleet": "devices.csv"}, "fleet: it is a str"),
        ({"ratios": None, "fleet": {"devises": 1}}, "fleet.devices: it is missing"),
        ({"ratios": None, "fleet": {"devices": 5}}, "fleet.devices: it is 5"),
        ({"ratios": {1: 0.5}}, "ratios: it is a dict"),
        ({"ratios": {0.5}}, "ratios: it is a set"),
        ({"ratios": (ratio for ratio in [0.5])}, "ratios: it is a generator"),
        ({"ratios": object()}, "ratios: it is a object"),
        ({"split": np.array(5)}, r"the split is array\(5\)"),
        ({"training": {"augment": "(given from Python)"}}, "Name it by import path"),
        ({"data": fedplt.TrainingData((X, Y), (X, Y), (X[:0], Y[:0]))}, "test data is empty"),
        ({"data": fedplt.TrainingData((X, Y), (X, Y), [])}, "test data is empty"),
        ({"data": (X[:, :5], Y)}, r"does not fit the training data .* shape \(5,\)"),
        ({"data": (X.half(), Y)}, r"does not fit the training data .* \(float16\)"),
        ({"data": (X, Y, Y)}, "tuple of 3 tensors"),
        ({"data": (None, None)}, "the inputs are None"),
        ({"model": "fcn"}, "model: it is a str"),
        ({"model": nn.Linear}, "model: it is a class"),
    ],
)
def test_train(given, words):
    with pytest.raises(fedplt.FedpltError, match=words):
        train(**given)


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ({"test_data": (X, Y)}, "fedplt.TrainingData(train, validation, test=...)"),
        ({"collate": list}, "fedplt.TrainingData(train, validation, collate=...)"),
        ({"learning_rates": [0.1, 0.2]}, "learning_rate=[0.1, 0.05, ...]"),
        ({"loss": mean_of_all}, 'task={"name": "classification", "loss": my_loss}'),
        ({"metric": "mae"}, 'task={"name": "regression", "metric": "mae"}'),
        ({"augment": mean_of_all}, 'training={"augment": my_augment}'),
        ({"alpha": 0.1}, "split={'alpha': ...}"),
        ({"batch_size": 32}, "training={'batch_size': ...}"),
        ({"never": ["head"]}, "cut={'never': ...}"),
        ({"trainig": {}}, "Did you mean 'training'?"),
        ({"rond": 3, "seed": 1}, "Did you mean 'rounds'?"),
    ],
)
def test_former_and_unknown_arguments_name_the_right_call(given, right):
    with pytest.raises(fedplt.ConfigError) as caught:
        train(**given)
    assert caught.value.key in given
    assert right in caught.value.message


def test_ratios_and_rates_may_be_tensors():
    assert train(ratios=torch.tensor([1.0, 0.5]), learning_rate=torch.tensor([0.5, 0.1])).scores


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(out=folder)
    return folder


def test_functions_of_runs(run):
    own = nn.Linear(6, 3)
    for call, words in (
        (lambda: fedplt.run(5), "config: 5 is a int; give a path"),
        (lambda: fedplt.resume(None), "None is a NoneType; give a path"),
        (lambda: fedplt.load(5), "5 is a int; give a path"),
        (lambda: fedplt.load_history(5), "5 is a int; give a path"),
        (lambda: fedplt.load(run, model=5), "model is 5"),
        (lambda: fedplt.resume(run, changes={"rounds": None}), "rounds: it is None"),
        (lambda: fedplt.resume(run, changes="rounds=3"), r"fedplt\.train with the same arguments"),
        (lambda: fedplt.evaluate(run, (X, Y), model=own, task="regression"), "give a fedplt.Task"),
        (lambda: fedplt.evaluate(run, (X[:0], Y[:0]), model=own), "the data is empty"),
        (lambda: fedplt.evaluate(run, f"{__name__}:fails", model=own), "fails' failed: KeyError"),
        (lambda: fedplt.make_plan(fedplt.cut(own), None), "ratios is None"),
        (lambda: fedplt.make_plan(fedplt.cut(own), ["a"]), "one number per client"),
    ):
        with pytest.raises(fedplt.FedpltError, match=words):
            call()
