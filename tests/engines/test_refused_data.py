"""Data that cannot be right is refused before training, in words about the data."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedplt
from tests.support.jobs import blobs

X, Y = blobs(60)


def with_value(tensor, value):
    changed = tensor.clone()
    changed.view(-1)[7] = value
    return changed


def train(data, model=None, **settings):
    model = model or nn.Linear(X.shape[1], 3)
    return fedplt.train(
        model, data, (X, Y) if "validation" not in settings else settings.pop("validation"),
        ratios=[1.0], rounds=1, engine={"workers": 1}, **settings,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            (X, Y.float()),
            ["training data: targets are floats, one per example", "'regression'", ".long()"],
        ),
        ((X, X[:, :3]), ["training data: targets are floats of shape (3,)", "'multi-label'"]),
        ((X, Y + 1), ["label 3", "example 2", "has 3 outputs", "count from 0"]),
        ((X, Y * 4), ["label 8", "at least 9 outputs"]),
        ((X, with_value(Y, -1)), ["label -1 (example 7)"]),
        ((with_value(X, torch.nan), Y), ["the inputs of 1 of 60", "example 1", "NaN or infinite"]),
        ((with_value(X, torch.inf), Y), ["NaN or infinite"]),
        ((torch.zeros(60, 6, dtype=torch.uint8), Y), ["whole numbers (torch.uint8)", "/ 255"]),
        (TensorDataset(X, Y + 1, Y), ["of type tuple"]),
    ],
)
def test_refused_before_training(data, words):
    validation = data if "whole" in words[0] else (X, Y)
    with pytest.raises(fedplt.DataError) as caught:
        train(data, validation=validation)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "learning rate" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "model", "words"),
    [
        ({"loss": nn.functional.mse_loss}, nn.Linear(6, 1), "accuracy needs a label"),
        ({"task": "next-token"}, nn.Linear(6, 3), "'next-token' needs a label"),
        ({"task": "regression"}, nn.Linear(6, 2), "one number"),
        (
            {"loss": nn.functional.mse_loss, "metric": "mae"},
            nn.Linear(6, 1),
            "Using a target size",  # (n, 1) and (n,) would become (n, n)
        ),
    ],
)
def test_tasks_that_do_not_fit(settings, model, words):
    data = (X, X[:, 0])
    with pytest.raises(fedplt.FedpltError, match=words):
        train(data, model, validation=data, **settings)


def test_labels_of_multi_label_are_between_0_and_1():
    data = (X, nn.functional.one_hot(Y) * 2)
    with pytest.raises(fedplt.DataError, match="0 to 2; multi-label needs 0 or 1"):
        train(data, validation=data, task="multi-label")


def test_probabilities_of_classes_are_targets():
    data = (X, nn.functional.one_hot(Y).float() * 0.9 + 0.1 / 3)
    assert train(data, validation=data).scores[0] > 0


def test_one_number_for_ratios():
    with pytest.raises(fedplt.ConfigError, match=r"ratios is one value, 0.5.*\[0.5\] \* 10"):
        fedplt.train(nn.Linear(6, 3), (X, Y), (X, Y), ratios=0.5, rounds=1)
    with pytest.raises(fedplt.ConfigError, match=r"ratios: that of client 1 is 1\.5"):
        fedplt.train(nn.Linear(6, 3), (X, Y), (X, Y), ratios=[0.5, 1.5], rounds=1)
    with pytest.raises(fedplt.ConfigError, match="ratios, fleet: give one of them"):
        fedplt.train(
            nn.Linear(6, 3), (X, Y), (X, Y), ratios=[0.5], fleet={"devices": "x.csv"}, rounds=1
        )
