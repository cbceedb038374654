"""Runs of Linear and ReLU as one autograd function: used where it is right, and nowhere else."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedplt import allocation_of, cut, make_plan, train_only
from fedplt.models import fcn
from tests.support.masked_training import OPTIMIZERS, train_masked


def ends_in_relu():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU())


def interrupted():
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8),
        nn.Linear(8, 5, bias=False), nn.ReLU(), nn.ReLU(),
    )  # fmt: skip


def nested():
    return nn.Sequential(ends_in_relu(), nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 5)))


class Residual(nn.Module):
    """The gradient of a sum goes to both sides: none of them may change it in place."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU())

    def forward(self, x):
        return self.body(x + self.body(x)) + x


MODELS = {
    "ends in relu": ends_in_relu,
    "interrupted": interrupted,
    "nested": nested,
    "residual, twice": Residual,
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_equals_masked_training(name, fused):
    model = MODELS[name]()
    layers = cut(model, torch.zeros(2, 6))
    lowest = allocation_of(layers.sizes, [0.4] + [0.0] * (len(layers) - 1))
    plan = make_plan(layers, [0.4, 0.7, 1.0, lowest])
    outputs = model(torch.zeros(2, 6)).shape[1]
    data = [(torch.randn(4, 6), torch.randn(4, outputs)) for _ in range(3)]
    for client in range(4):
        ours, reference = copy.deepcopy(model), copy.deepcopy(model)
        with train_only(ours, plan.assignment(client)) as part:
            optimizer = OPTIMIZERS["sgd"](part.parameters())
            if fused:
                part.fuse_sgd(0.1)
            for inputs, targets in data:
                part.backward(F.mse_loss(ours(inputs), targets))
                if fused:
                    part.step()
                else:
                    optimizer.step()
                    optimizer.zero_grad()
        train_masked(reference, plan.assignment(client), data, OPTIMIZERS["sgd"], F.mse_loss)
        for key, value in reference.state_dict().items():
            if "num_batches" not in key:
                torch.testing.assert_close(ours.state_dict()[key], value, msg=key)


def used(model, inputs):
    """Whether the output comes straight from a chain."""
    with train_only(model, make_plan(cut(model), [0.5]).assignment(0)):
        return type(model(inputs).grad_fn).__name__ == "_ChainBackward"


def test_is_used_for_the_papers_fcn():
    assert used(fcn(), torch.zeros(2, 1, 28, 28))


def test_is_left_out_where_somebody_looks_at_the_parts():
    model, seen = ends_in_relu(), []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    assert not used(model, torch.zeros(2, 6))
    assert seen == [1]
    inside = ends_in_relu()
    with train_only(inside, make_plan(cut(inside), [0.5]).assignment(0)):
        inside[1].register_forward_hook(lambda *_: seen.append(2))
        inside(torch.zeros(2, 6))
    assert seen == [1, 2]
    relu = nn.ReLU()  # the same module twice
    assert used(nn.Sequential(nn.Linear(6, 6), relu, nn.Linear(6, 6), relu), torch.zeros(2, 6))


def test_sequences_take_the_usual_way():
    model = ends_in_relu()
    assert not used(model, torch.zeros(2, 3, 6))


@pytest.mark.parametrize(("batch_size", "error"), [(2, 0), (64, 3e-7)])
def test_the_forward_pass_gives_the_same_values(batch_size, error):
    """The same bits below the size at which another library computes the products."""
    model, inputs = fcn(), torch.randn(batch_size, 784)
    expected = model(inputs)
    with train_only(model, make_plan(cut(model), [0.3]).assignment(0)):
        torch.testing.assert_close(model(inputs), expected, rtol=0, atol=error)
    assert torch.equal(model(inputs), expected)
    assert "forward" not in vars(model)
