"""What is accepted as data, and what is said of data that is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fedplt import DataError, TrainingData
from fedplt.data.dataset_samples import DatasetSamples
from fedplt.data.samples import TensorSamples
from fedplt.data.training_data import as_samples

X, Y = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


class Column:
    """As much of a pandas object as is needed."""

    def __init__(self, values):
        self.values = np.array(values)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        return self.values[key]

    def to_numpy(self):
        return self.values


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(X[0], 0)])


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


@pytest.mark.parametrize(
    "data",
    [
        (X.numpy(), Y.numpy().astype(np.uint16)),
        (Column(X.tolist()), Column(Y.tolist())),
        (X.tolist(), Y.tolist()),
        (list(X), Y.numpy() == 1),
        ({"x": X, "mask": X > 3}, Y.int()),
        {"x": X, "labels": Y.numpy()},
        Items([{"x": x, "labels": int(y)} for x, y in zip(X, Y, strict=True)]),
        Items([(x.double().numpy(), np.int32(y)) for x, y in zip(X, Y, strict=True)]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*float64")
def test_what_is_taken(data):
    samples = TrainingData(data, (X, Y)).train
    inputs, targets = samples.batch(torch.tensor([4, 1]))
    if isinstance(inputs, dict):
        assert samples.checksum(0) != 0
        assert len(samples.arranged(np.array([3, 1]))) == 2
        inputs = inputs["x"]
    assert torch.equal(inputs, X[[4, 1]]) and inputs.dtype is torch.float32
    assert targets.tolist() == [1, 1] and targets.dtype is torch.int64
    assert len(samples.labels()) == 6


def test_doubles_are_converted_and_it_is_said_once():
    with pytest.warns(UserWarning, match="data is float64") as said:
        samples = as_samples((X.double().numpy(), Y))
    assert len(said) == 1 and samples.inputs.dtype is torch.float32


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Stream(), "IterableDataset.*list"),
        (DataLoader(Items([(X[0], 0)])), "loader.dataset"),
        ((X, ["cat", "dog", "cat", "dog", "cat", "dog"]), "text.*'cat', 'dog'.*numpy.unique"),
        ((Column([["a", 1]] * 6), Y), "inputs are text"),
        ((X, Column(np.array([None, {}] * 3, dtype=object))), "cannot be converted"),
        (Column(X.tolist()), r"alone; give \(inputs, targets\)"),
        (X, "Tensor alone"),
        ({"x": X}, "alone"),
        (([[1.0], [1.0, 2.0], [3.0]], [0, 1, 0]), "different lengths"),
        ((X, torch.tensor(3)), "a single number"),
        (({"x": X, "y": X[:4]}, Y), "4 inputs 'y' and 6 targets"),
    ],
)
def test_what_is_not(data, words):
    with pytest.raises(DataError, match=f"validation data.*{words}"):
        TrainingData((X, Y), data)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"x": X[0]}, "'labels'"),
        (X[0], "of type Tensor"),
        ((X[0], "cat"), "targets are text"),
        ((X[0] / 0, 1), "item 1 of the Dataset has NaN"),
    ],
)
def test_items_that_are_not_taken(item, words):
    samples = DatasetSamples(Items([(X[0], 0), item]))
    assert isinstance(as_samples((X, Y)), TensorSamples)
    with pytest.raises(DataError, match=words):
        samples.batch(torch.tensor([1]))
