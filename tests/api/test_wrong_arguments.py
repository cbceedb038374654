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
    return fedplt.train(settings.pop("model"), settings.pop("data"), (X, Y), **settings)


def fails():
    raise KeyError("x")


def mean_of_all(outputs, targets):
    return outputs - 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"learning_rates": 0.1}, "give 2 positive numbers"),
        ({"learning_rates": ["a", 0.1]}, "give 2 positive numbers"),
        ({"learning_rates": [0.1, float("nan")]}, "give 2 positive numbers"),
        ({"learning_rates": [0.1]}, "give 2 positive numbers"),
        ({"task": 5}, "task is a int"),
        ({"task": fedplt.Task}, "task is a class"),
        ({"loss": mean_of_all}, r"a loss is a tensor of one number"),
        ({"loss": lambda outputs, targets: 5}, "the loss gives 5"),
        ({"augment": lambda inputs: inputs}, "augment: it fails on inputs of shape"),
        ({"augment": lambda inputs, generator: None}, "it gives a NoneType"),
        ({"cut": 5}, "cut is a int"),
        ({"training": "x"}, "training is a str"),
        ({"method": 5}, "method is a int"),
        ({"out": 5}, "out: 5 is a int; give a path"),
        ({"on_round": None}, "on_round is a NoneType"),
        ({"ratios": None, "fleet": "devices.csv"}, "fleet is a str"),
        ({"ratios": None, "fleet": {"devises": 1}}, "devices is missing"),
        ({"ratios": None, "fleet": {"devices": 5}}, "devices is 5; give the path"),
        ({"ratios": {1: 0.5}}, "ratios is a dict"),
        ({"ratios": {0.5}}, "ratios is a set"),
        ({"ratios": (ratio for ratio in [0.5])}, "ratios is a generator"),
        ({"ratios": object()}, "ratios is a object"),
        ({"split": np.array(5)}, "the split is a ndarray"),
        ({"training": {"augment": "(given from Python)"}}, "Name it by import path"),
        ({"test_data": (X[:0], Y[:0])}, "test data is empty"),
        ({"test_data": []}, "test data is empty"),
        ({"data": (X[:, :5], Y)}, r"does not fit the training data .* shape \(5,\)"),
        ({"data": (X.half(), Y)}, r"does not fit the training data .* \(float16\)"),
        ({"data": (X, Y, Y)}, "tuple of 3 tensors"),
        ({"data": (None, None)}, "the inputs are None"),
        ({"model": "fcn"}, "model is a str"),
        ({"model": nn.Linear}, "model is a class"),
    ],
)
def test_train(given, words):
    with pytest.raises(fedplt.FedpltError, match=words):
        train(**given)


def test_ratios_and_rates_may_be_tensors():
    assert train(ratios=torch.tensor([1.0, 0.5]), learning_rates=torch.tensor([0.5, 0.1])).scores


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
