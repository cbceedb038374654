"""A model in a ``train_only`` block against full gradients times mask, in float64.

Three steps, at two ratios and with the first layer alone, with the fused step and with two
optimizers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fedplt import allocation_of, cut, make_plan, train_only
from fedplt.models import copy_model
from tests.support.masked_training import masks

STEPS = 3


class Model(nn.Module):
    """A forward of a test's own over some modules."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.run = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.run(self, x)


def square(model, x):
    return model(x).pow(2).mean()


def reference(model, assignment, x, loss, optimizer):
    """Full gradients times mask."""
    model, mask = copy_model(model), masks(assignment)
    made = optimizer(model.parameters())
    for _ in range(STEPS):
        made.zero_grad()
        loss(model, x).backward()
        # A model may write to its own weights: what is not trained stays as it made them.
        old = {name: value.detach().clone() for name, value in model.named_parameters()}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                if parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()
                parameter.grad.mul_(mask.get(name, torch.zeros(())))
        made.step()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                keep = mask.get(name, torch.zeros(())).bool()
                parameter.copy_(torch.where(keep, parameter, old[name]))
    return model


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def in_block(model, assignment, x, loss, optimizer, idiom):
    model = copy_model(model)
    with train_only(model, assignment) as part:
        if optimizer is None:
            part.fuse_sgd(0.05)
            for _ in range(STEPS):
                part.backward(loss(model, x))
                part.step()
        else:
            made = optimizer(part.parameters())
            for _ in range(STEPS):
                idiom(model, made, part, lambda: loss(model, x))
                made.step()
    return model


def standard(model, optimizer, part, loss):
    optimizer.zero_grad()
    loss().backward()


def check(model, x, loss=square, example=None, idiom=standard):
    model, x = model.double(), x.double()
    layers = cut(model, x if example is None else example.double())
    before = dict(model.named_parameters())
    lowest = allocation_of(layers.sizes, [0.4] + [0.0] * (len(layers) - 1))
    for ratio in (0.4, 1.0, lowest):
        assignment = make_plan(layers, [ratio] * 3).assignment(1)
        for optimizer in (None, sgd, adam):
            wanted = reference(model, assignment, x, loss, optimizer or sgd)
            got = in_block(model, assignment, x, loss, optimizer, idiom)
            moved = max(
                float((p - before[n]).detach().abs().max()) for n, p in wanted.named_parameters()
            )
            assert ratio is lowest or moved > 1e-4
            for name, value in wanted.named_parameters():
                difference = dict(got.named_parameters())[name] - value
                error = float(difference.detach().abs().max()) / max(moved, 1e-4)
                assert error < 1e-10, (name, ratio, optimizer, error)


def two():
    return {"a": nn.Linear(6, 8), "b": nn.Linear(8, 4)}


def straight(model, x):
    return model.b(F.relu(model.a(x)))


def block(model, ratio=0.4):
    return train_only(model, make_plan(cut(model), [ratio] * 3).assignment(1))
