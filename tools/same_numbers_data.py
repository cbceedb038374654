"""Small seeded data for ``same_numbers.py``: nothing is downloaded, no random state is shared."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

import fedplt


def vectors() -> fedplt.TrainingData:
    """For ``fcn``. The validation data is more than one chunk of an evaluation."""
    means = torch.randn(10, 784, generator=torch.Generator().manual_seed(0))
    return _data(lambda number, random: _around(means, number, random), 300, 1100)


def images() -> fedplt.TrainingData:
    """For ``cnn``, ``resnet8`` and ``vit``: coarse patterns, so that convolutions see them."""
    coarse = torch.randn(10, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    means = coarse.repeat_interleave(8, 2).repeat_interleave(8, 3)
    return _data(lambda number, random: _around(means, number, random), 180, 60)


def tokens() -> fedplt.TrainingData:
    """For ``text``: each row counts in its own steps; every next token is the target."""

    def counting(number: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        first, step = torch.randint(1, 8, (2, number, 1), generator=random)
        rows = (first + step * torch.arange(33)) % 64
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    return _data(counting, 120, 60)


def _around(means: Tensor, number: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise around the means of the classes, and the classes."""
    labels = torch.randint(len(means), (number,), generator=random)
    return torch.randn(number, *means.shape[1:], generator=random) + means[labels], labels


def _data(make: Any, num_train: int, num_validation: int) -> fedplt.TrainingData:
    # TensorSamples is no name of the top level: it is looked up beside TrainingData, wherever that
    # is moved, and at the top level in case it comes to be there.
    beside: Any = sys.modules[fedplt.TrainingData.__module__]
    samples: Any = getattr(fedplt, "TensorSamples", None) or beside.TensorSamples
    parts = [
        samples(*make(number, torch.Generator().manual_seed(seed)))
        for seed, number in enumerate((num_train, num_validation, 60), start=1)
    ]
    return fedplt.TrainingData(*parts)
