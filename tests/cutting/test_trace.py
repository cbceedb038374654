"""Tracing a model leaves it as it was, and says in words what it cannot trace."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedplt import CutError, cut
from fedplt.errors import ExampleError


class Writes(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.5)
        self.bias.data = self.bias.data.double().float() + 1
        return super().forward(x)


def test_tracing_does_not_change_parameters():
    model = Writes(3, 4)
    before, memory = copy.deepcopy(model.state_dict()), model.weight.data_ptr()
    cut(model, torch.randn(2, 3))
    assert model.weight.data_ptr() == memory
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_examples_that_the_model_does_not_take():
    with pytest.raises(ExampleError, match="cannot be run on the example input: RuntimeError"):
        cut(nn.Linear(3, 4), torch.randn(2, 5))


class OnlyInTraining(nn.Linear):
    def forward(self, x):
        if not self.training:
            raise NotImplementedError
        return super().forward(x)


def test_models_that_run_in_one_mode_alone():
    assert cut(OnlyInTraining(3, 4), torch.randn(2, 3)).size == 16


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_get_their_shapes_from_the_example():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
    assert cut(model, torch.randn(2, 3)).size == 16 + 8 + 10
    assert int(model[1].num_batches_tracked) == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripted_modules_with_statistics():
    inner = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    before = inner[1].running_mean.clone()
    with pytest.raises(CutError, match=r"'0\.1' \(TorchScript\) keeps running statistics"):
        cut(nn.Sequential(inner, nn.Linear(4, 2)), torch.randn(5, 3))
    assert torch.equal(inner[1].running_mean, before)


def test_statistics_that_nobody_averages():
    first = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 4))
    with pytest.raises(CutError, match=r"normalization layer '0'.*affine = True"):
        cut(first, torch.randn(5, 3))

    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(3, affine=False), nn.Linear(3, 4)

        def forward(self, x):
            return self.linear(x)

    assert cut(Unused(), torch.randn(5, 3)).size == 16


def test_parameters_that_no_slice_can_be_trained_of():
    model = nn.Linear(3, 4)
    model.weight = nn.Parameter(torch.randn(4, 3).to_sparse())
    with pytest.raises(CutError, match="weight is sparse"):
        cut(model)
    with pytest.raises(CutError, match="weight has no values"):
        cut(nn.Linear(3, 4, device="meta"))
    with pytest.raises(CutError, match="complex64"):
        cut(nn.Linear(3, 4, dtype=torch.complex64))
