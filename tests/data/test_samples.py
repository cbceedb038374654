"""Tensors and Datasets as examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedplt import DataError
from fedplt.data.training_data import as_samples

X, Y = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


class Squares(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return X[index] ** 2, int(Y[index])


@pytest.mark.parametrize("data", [(X, Y), (X.numpy(), Y.numpy()), TensorDataset(X, Y), Squares()])
def test_all_kinds_behave_alike(data):
    samples = as_samples(data)
    assert len(samples) == 6
    inputs, targets = samples.batch(torch.tensor([4, 1]))
    assert targets.tolist() == [1, 1]
    assert inputs.shape == (2, 2)
    assert samples.labels().tolist() == Y.tolist()
    turned = samples.arranged(np.arange(6)[::-1].copy())
    assert turned.labels().tolist() == Y.flip(0).tolist()
    assert torch.equal(
        turned.batch(torch.tensor([0]))[0][0], samples.batch(torch.tensor([5]))[0][0]
    )
    again = turned.arranged(np.array([5, 0]))
    assert again.labels().tolist() == [0, 2]


@pytest.mark.parametrize("data", [(torch.randn(5, 3, 4, 4), torch.arange(5))])
def test_channels_last_changes_the_layout_only(data):
    for samples in (as_samples(data), as_samples(list(zip(*data, strict=True)))):
        turned = samples.with_channels_last().arranged(np.array([3, 1, 0, 2, 4]))
        inputs, targets = turned.batch(torch.tensor([0, 4]))
        assert torch.equal(inputs, data[0][[3, 4]])
        assert targets.tolist() == [3, 4]
        assert inputs.is_contiguous(memory_format=torch.channels_last)


def test_lists_of_pairs_are_datasets():
    assert as_samples([(X[i], 0) for i in range(2)]).batch(torch.tensor([1]))[0].shape == (1, 2)


def test_refusals():
    with pytest.raises(DataError, match="6 inputs and 5 targets"):
        as_samples((X, Y[:5]))
    with pytest.raises(DataError, match="data is a int"):
        as_samples(3)
    with pytest.raises(DataError, match="one integer label per example"):
        as_samples((X, X)).labels()
