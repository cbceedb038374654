"""Layers of every kind that take and give (batch, LENGTH, WIDTH), to build random networks from."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, LENGTH = 8, 5


class Turned(nn.Module):
    """A module that wants channels on axis 1, and maybe a plane of positions."""

    def __init__(self, inner, is_plane=False):
        super().__init__()
        self.inner, self.is_plane = inner, is_plane

    def forward(self, x):
        x = x.transpose(1, 2)
        if self.is_plane:
            return self.inner(x.unsqueeze(-1)).squeeze(-1).transpose(1, 2)
        return self.inner(x).transpose(1, 2)


class Rows(nn.Module):
    """A module that takes (samples, features): where runs of Linear and ReLU are one kernel."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.reshape(-1, WIDTH)).view_as(x)


class First(nn.Module):
    """A recurrent layer without its last state."""

    def __init__(self, memory):
        super().__init__()
        self.memory = memory

    def forward(self, x):
        return self.memory(x)[0]


class Cells(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell = kind(WIDTH, WIDTH)

    def forward(self, x):
        state, outputs = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state)
        return torch.stack(outputs, 1)


class Attention(nn.Module):
    def __init__(self, need_weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x):
        return self.attention(x, x.flip(1), x, need_weights=self.need_weights)[0]


class FusedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Looked(nn.Module):
    """Adds the embedding of a token made of the input."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, x):
        tokens = (x.detach()[..., :3] > 0).long() @ torch.tensor([1, 2, 4])  # (batch, length)
        if isinstance(self.embedding, nn.EmbeddingBag):
            return x + self.embedding(tokens).unsqueeze(1)
        return x + self.embedding(tokens)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.shift = nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        return torch.tanh(x) * self.scale + self.shift


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def forward(self, x):
        return self.inner(torch.tanh(x), torch.sigmoid(x))


class Transposed(nn.Module):
    """A weight on both of its axes: as it is, and transposed."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 6)

    def forward(self, x):
        return F.linear(torch.relu(self.inner(x)), self.inner.weight.T)


def tied_convolutions():
    down, up = nn.Conv1d(WIDTH, 6, 3, padding=1), nn.ConvTranspose1d(6, WIDTH, 3, padding=1)
    up.weight = down.weight
    return Turned(nn.Sequential(down, nn.Tanh(), up))


def tied_linears():
    one, two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
    two.weight = one.weight
    return nn.Sequential(one, nn.GELU(), two)


class TiedEmbedding(nn.Module):
    """Tokens are looked up, and scored, with one weight."""

    def __init__(self):
        super().__init__()
        self.looked, self.scores = Looked(nn.Embedding(8, WIDTH)), nn.Linear(WIDTH, 8, bias=False)
        self.scores.weight = self.looked.embedding.weight

    def forward(self, x):
        return self.scores(self.looked(x)).softmax(-1)


class SharedBias(nn.Module):
    """Two weights with one bias."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.two.bias = self.one.bias

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


class Sometimes(nn.Module):
    """A weight that some batches look up rows of, or use behind an adapter with a fixed bias."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.adapter, self.one = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.two = nn.Linear(WIDTH, WIDTH)
        self.fixed = nn.Parameter(torch.rand(WIDTH), requires_grad=False)

    def forward(self, x):
        adapted, first = self.adapter(x), x.detach().flatten()[:1]
        if not (first > 0).any():
            hidden = self.one(x)
        elif self.kind == "table":
            hidden = F.embedding(x.detach().argmax(-1), self.one.weight)
        else:
            hidden = F.linear(adapted, self.one.weight, self.fixed)
        return self.two(torch.relu(hidden)) + adapted


class Backwards(nn.Sequential):
    """Calls its modules in an order of its own."""

    def __iter__(self):
        return iter(list(self._modules.values())[::-1])


class NormByHand(nn.Module):
    """Keeps running statistics without a function of torch."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("running_mean", torch.zeros(WIDTH))
        self.register_buffer("running_var", torch.ones(WIDTH))

    def forward(self, x):
        if not self.training:
            return (x - self.running_mean) / (self.running_var + 1e-5).sqrt() * self.scale
        var, mean = torch.var_mean(x.reshape(-1, WIDTH), 0)
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(var, 0.1)
        return (x - mean) / (var + 1e-5).sqrt() * self.scale


class Computed(nn.Module):
    """A layer whose weight another layer computes of the weight of a third."""

    def __init__(self):
        super().__init__()
        self.inner, self.maker = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return F.linear(x, self.maker(self.inner.weight)) * self.inner(x)


class Averaged(nn.Module):
    """A layer, and a copy of it that follows slowly: the model writes to its own weights."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.average = copy.deepcopy(self.inner).requires_grad_(False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                pairs = zip(self.average.parameters(), self.inner.parameters(), strict=True)
                for slow, fast in pairs:
                    slow.mul_(0.9).add_(fast, alpha=0.1)
        return self.inner(x) - 0.5 * self.average(x)


def chain(*options):
    return Rows(
        nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, WIDTH, bias=False), *options)
    )


LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "chain": chain,
    "chain with relu": lambda: chain(nn.ReLU(), nn.Linear(WIDTH, WIDTH)),
    "two": lambda: nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, WIDTH)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "RMS norm": lambda: nn.RMSNorm(WIDTH),
    "batch norm": lambda: Turned(nn.BatchNorm1d(WIDTH)),
    "convolution and batch norm": lambda: Turned(
        nn.Sequential(nn.Conv1d(WIDTH, 6, 1), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, WIDTH, 1))
    ),
    "group norm": lambda: Turned(nn.GroupNorm(2, WIDTH)),
    "instance norm": lambda: Turned(
        nn.InstanceNorm1d(WIDTH, affine=True, track_running_stats=True)
    ),
    "convolution": lambda: Turned(nn.Conv1d(WIDTH, WIDTH, 3, padding=1, dilation=1)),
    "grouped convolution": lambda: Turned(nn.Conv1d(WIDTH, WIDTH, 3, padding="same", groups=4)),
    "circular convolution": lambda: Turned(
        nn.Conv1d(WIDTH, WIDTH, 3, padding=1, padding_mode="circular", bias=False)
    ),
    "plane convolution": lambda: Turned(
        nn.Sequential(nn.Conv2d(WIDTH, 6, (3, 1), padding=(1, 0)), nn.SiLU(),
                      nn.ConvTranspose2d(6, WIDTH, (3, 1), padding=(1, 0))),
        is_plane=True,
    ),
    "transposed convolution": lambda: Turned(nn.ConvTranspose1d(WIDTH, WIDTH, 3, padding=1)),
    "attention": lambda: Attention(False),
    "attention with weights": lambda: Attention(True),
    "fused attention": FusedAttention,
    "encoder": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.1, batch_first=True),
    "GRU": lambda: First(nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "LSTM": lambda: First(nn.LSTM(WIDTH, 4, batch_first=True, bidirectional=True)),
    "stacked RNN": lambda: First(nn.RNN(WIDTH, WIDTH, 2, batch_first=True)),
    "cells": lambda: Cells(nn.GRUCell),
    "embedding": lambda: Looked(nn.Embedding(8, WIDTH, padding_idx=3)),
    "bag": lambda: Looked(nn.EmbeddingBag(8, WIDTH)),
    "bare parameters": Scaled,
    "PReLU": lambda: Turned(nn.PReLU(WIDTH)),
    "bilinear": Bilinear,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "dropout": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)),
    "one weight on two axes": Transposed,
    "tied convolutions": tied_convolutions,
    "tied linears": tied_linears,
    "tied embedding": TiedEmbedding,
    "shared bias": SharedBias,
    "chain in another order": lambda: Rows(
        Backwards(nn.Linear(12, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 12))
    ),
    "norm by hand": NormByHand,
    "computed weight": Computed,
    "average of weights": Averaged,
    "a table in some batches": lambda: Sometimes("table"),
    "a fixed bias in some batches": lambda: Sometimes("bias"),
}  # fmt: skip
