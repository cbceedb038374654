"""Networks nobody designed: Hypothesis builds them from parts, residual, branched and shared."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedplt import cut, make_plan
from tests.support.masked_training import assert_equals_masked
from tests.support.zoo import batches, images

WIDTH, LENGTH = 8, 5


class Turned(nn.Module):
    """A module that wants channels on axis 1."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Branches(nn.Module):
    def __init__(self, one, two):
        super().__init__()
        self.one, self.two, self.join = one, two, nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.join(torch.cat([self.one(x), self.two(x)], -1))


class Twice(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(torch.tanh(self.inner(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self, kind, units, **options):
        super().__init__()
        self.memory = kind(WIDTH, units, batch_first=True, **options)

    def forward(self, x):
        return self.memory(x)[0]


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x):
        return torch.tanh(x) * self.scale


def tied():
    down, up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    up.weight = down.weight
    return nn.Sequential(down, nn.GELU(), up)


LEAVES = st.sampled_from(
    [
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda: nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, WIDTH, bias=False)),
        lambda: nn.LayerNorm(WIDTH),
        lambda: nn.RMSNorm(WIDTH),
        lambda: Turned(nn.BatchNorm1d(WIDTH)),
        lambda: Turned(nn.GroupNorm(2, WIDTH)),
        lambda: Turned(nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=4)),
        lambda: Turned(nn.Sequential(nn.Conv1d(WIDTH, 6, 1), nn.ConvTranspose1d(6, WIDTH, 1))),
        lambda: Turned(nn.Sequential(nn.Conv1d(WIDTH, 6, 1), nn.ReLU(), nn.Conv1d(6, WIDTH, 1))),
        Attention,
        lambda: Recurrent(nn.GRU, WIDTH),
        lambda: Recurrent(nn.RNN, WIDTH // 2, num_layers=2, bidirectional=True),
        lambda: Recurrent(nn.LSTM, 10, proj_size=WIDTH),
        Scaled,
        tied,
    ]
)


def blocks(inner):
    return st.one_of(
        inner.map(lambda make: lambda: Residual(make())),
        inner.map(lambda make: lambda: Twice(make())),
        st.tuples(inner, inner).map(lambda pair: lambda: Branches(pair[0](), pair[1]())),
        st.lists(inner, min_size=2, max_size=3).map(
            lambda makes: lambda: nn.Sequential(*(make() for make in makes))
        ),
    )


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    make=st.recursive(LEAVES, blocks, max_leaves=5),
    ratio=st.sampled_from([0.1, 0.35, 0.7, 1.0]),
    client=st.integers(0, 2),
    optimizer=st.sampled_from(["fused", "momentum", "adam"]),
    seed=st.integers(0, 99),
)
def test_equals_masked_training(make, ratio, client, optimizer, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, WIDTH), make(), Mean(), nn.Linear(WIDTH, 4)).double()
    make_inputs = images(LENGTH, 3)
    layers = cut(model, make_inputs(2).double())
    data = [(x.double(), y) for x, y in batches(make_inputs, number=2, size=4)]
    assignment = make_plan(layers, [ratio] * 3).assignment(client)
    assert_equals_masked(model, assignment, data, optimizer, tolerance=(1e-9, 1e-7))
