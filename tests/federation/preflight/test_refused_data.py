"""Data that cannot be right is refused before training, in words about the data."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import fedplt
from fedplt.federation.preflight import data as data_checks
from tests.support.jobs import blobs

X, Y = blobs(60)


def with_value(tensor, value):
    changed = tensor.clone()
    changed.view(-1)[7] = value
    return changed


def train(data, model=None, **settings):
    model = model or nn.Linear(X.shape[1], 3)
    validation, test = settings.pop("validation", (X, Y)), settings.pop("test", None)
    return fedplt.train(
        model, fedplt.TrainingData(data, validation, test),
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
        ((X, with_value(Y, -100)), ["label -100 (example 7)", "only label"]),
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
        ({"task": {"loss": nn.functional.mse_loss}}, nn.Linear(6, 1), "accuracy needs a label"),
        ({"task": "next-token"}, nn.Linear(6, 3), "'next-token' needs a label"),
        ({"task": "regression"}, nn.Linear(6, 2), "one number"),
        (
            {"task": {"loss": nn.functional.mse_loss, "metric": "mae"}},
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
    with pytest.raises(fedplt.DataError, match=r"0 to 2 \(example 0\); multi-label needs 0 or 1"):
        train(data, validation=data, task="multi-label")


def test_probabilities_of_classes_are_targets():
    data = (X, nn.functional.one_hot(Y).float() * 0.9 + 0.1 / 3)
    assert train(data, validation=data).scores[0] > 0


class Items(Dataset):
    """Example 50 is another one; those that raise are fetched in vain."""

    def __init__(self, other, targets=Y):
        self.other, self.targets = other, targets

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        if index == 50 and isinstance(self.other, Exception):
            raise self.other
        return self.other if index == 50 else (X[index], self.targets[index])


ITEMS = [
    ((X[0] / 0, 0), "item 50 of the Dataset has NaN"),
    ((X[0], 7), r"label 7 \(example 50\).*at least 8 outputs"),
    ((X[0], 0.5), r"such as 0.5 \(example 50\)"),
    ((X[0], "cat"), "and 50 of the Dataset are not alike: .* the text 'cat'"),
    ((X[0, :2], 0), r"and 50 of the Dataset are not alike: .* shape \(2,\).* collate="),
    ((X[0], 0, 0), r"item 50 of the Dataset .* 3 parts.* \(\(a, b\), target\)"),
    (FileNotFoundError("50.png"), r"item 50 .* FileNotFoundError: 50.png \(test_refused_data.py"),
]


@pytest.mark.parametrize(("item", "words"), ITEMS)
@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_items_of_a_dataset_are_refused_before_training(item, words, part):
    bad, good = Items(item, Y.tolist()), Items((X[0], 0), Y.tolist())
    data = {name: bad if name == part else good for name in ("train", "validation", "test")}
    named = {"train": "training"}.get(part, part)
    with pytest.raises(fedplt.DataError, match=f"^{named} data: .*{words}"):
        train(data["train"], validation=data["validation"], test=data["test"])


@pytest.mark.parametrize(("item", "words"), ITEMS)
def test_costly_items_are_refused_when_they_are_fetched(item, words, monkeypatch):
    monkeypatch.setattr(data_checks, "ITEMS_AHEAD", 0)
    with pytest.raises(fedplt.DataError, match=f"client 0, round 1 failed: .*{words}") as caught:
        train(Items(item, Y.tolist()))
    assert "Traceback" not in str(caught.value)


def test_several_labels_of_an_item(monkeypatch):
    monkeypatch.setattr(data_checks, "ITEMS_AHEAD", 0)
    targets = nn.functional.one_hot(Y).float()
    bad = Items((X[0], torch.tensor([0.0, 3.0, 0.0])), targets)
    with pytest.raises(fedplt.DataError, match=r"0 to 3 \(example 50\); multi-label needs 0 or 1"):
        train(bad, validation=(X, targets), task="multi-label")


def test_a_bad_test_item_loses_no_round(tmp_path, monkeypatch):
    monkeypatch.setattr(data_checks, "ITEMS_AHEAD", 0)
    bad, good = Items((X[0], 7), Y.tolist()), Items((X[0], 0), Y.tolist())
    with pytest.raises(fedplt.DataError, match=r"test data.*label 7 \(example 50\)"):
        train((X, Y), test=bad, out=tmp_path / "run")
    assert len(fedplt.load_history(tmp_path / "run").rounds) == 1
    assert train((X, Y), test=good, out=tmp_path / "run", resume=True).test_score > 0
    with pytest.raises(fedplt.DataError, match=r"^the data: label 7 \(example 50\)"):
        fedplt.evaluate(tmp_path / "run", bad, model=nn.Linear(6, 3))


@pytest.mark.parametrize("item", [item for item, _ in ITEMS[2:]])
def test_items_that_a_split_by_labels_meets(item, monkeypatch):
    monkeypatch.setattr(data_checks, "ITEMS_AHEAD", 0)
    with pytest.raises(fedplt.FedpltError, match=r"Dataset|label per example") as caught:
        train(Items(item, Y.tolist()), split="dirichlet")
    assert "split_file" not in str(caught.value)


def test_one_number_for_ratios():
    with pytest.raises(fedplt.ConfigError, match=r"ratios: 0.5 .*\[0.5\] \* 10"):
        fedplt.train(nn.Linear(6, 3), (X, Y), (X, Y), ratios=0.5, rounds=1)
    with pytest.raises(fedplt.ConfigError, match=r"ratios: that of client 1 is 1\.5"):
        fedplt.train(nn.Linear(6, 3), (X, Y), (X, Y), ratios=[0.5, 1.5], rounds=1)
    with pytest.raises(fedplt.ConfigError, match=r"ratios: .*fleet"):
        fedplt.train(
            nn.Linear(6, 3), (X, Y), (X, Y), ratios=[0.5], fleet={"devices": "x.csv"}, rounds=1
        )
