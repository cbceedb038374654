"""Models of every kind that people bring, small; each with a way to make inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolutions(nn.Module):
    """1d, grouped, depthwise, dilated, and a class of its own."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(3, 8, 3, padding=1)
        self.grouped = nn.Conv1d(8, 12, 3, groups=4, padding="same")
        self.norm = nn.BatchNorm1d(12)
        self.depthwise = nn.Conv1d(12, 24, 3, groups=12, bias=False, dilation=2)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.grouped(F.relu(self.stem(x)))))
        return self.head(self.depthwise(x).mean(-1))


class Volumes(nn.Module):
    """3d, transposed with and without groups, PReLU, a learned temperature (a single number)."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv3d(1, 6, 3, stride=2, padding=1)
        self.act = nn.PReLU(6)
        self.up = nn.ConvTranspose3d(6, 4, 2, stride=2)
        self.up_norm = nn.InstanceNorm3d(4, affine=True, track_running_stats=True)
        self.grouped = nn.ConvTranspose3d(4, 6, 2, groups=2)
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = self.grouped(F.relu(self.up_norm(self.up(self.act(self.down(x))))))
        return self.head(x.mean((2, 3, 4))) * self.temperature


class Tokens(nn.Module):
    """Embeddings, a class token, learned positions, torch's encoder layer, tied weights."""

    def __init__(self, vocabulary=11, width=8):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.bag = nn.EmbeddingBag(vocabulary, width)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 7, width))
        self.encoder = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.bag(tokens)[:, None]
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.encoder(x)[:, 0])


class CrossAttention(nn.Module):
    """Queries and keys differ in content and in width; attention with its own biases."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 3, 8))
        self.same = nn.MultiheadAttention(8, 4, batch_first=True)
        self.other = nn.MultiheadAttention(8, 2, kdim=5, vdim=6, batch_first=True, add_bias_kv=True)
        self.keys, self.values = nn.Linear(10, 5), nn.Linear(10, 6)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        q = self.queries.expand(len(x), -1, -1)
        y, _ = self.other(q, self.keys(x), self.values(x))
        y = y + self.same(q, y, y)[0] + self.same(y, y, y, need_weights=False)[0]
        return self.head(y.mean(1))


class FusedAttention(nn.Module):
    """A fused qkv Linear, pre-norms and residual sums, as in most vision transformers."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.first = nn.Linear(10, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.first(x)
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.mlp(self.norm2(x))
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    """Stacked, in both directions, with a projection, with and without biases."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(10, 6, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 5, num_layers=2, batch_first=True)
        self.rnn = nn.RNN(5, 4, num_layers=2, nonlinearity="relu", bias=False, bidirectional=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.rnn(self.gru(self.lstm(x)[0])[0].transpose(0, 1))[0].mean(0))


class Projected(nn.Module):
    """LSTMs whose outputs are narrower than their hidden units."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 6)
        self.lstm = nn.LSTM(6, 7, 2, batch_first=True, bidirectional=True, proj_size=3)
        self.last = nn.LSTM(6, 8, proj_size=2, bias=False)
        self.head = nn.Linear(2, 4)

    def forward(self, x):
        return self.head(self.last(self.lstm(self.first(x))[0].transpose(0, 1))[0][-1])


class Cells(nn.Module):
    """The user's own loop over time."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(10, 6), nn.GRUCell(6, 5, bias=False)
        self.rnn, self.head = nn.RNNCell(5, 4), nn.Linear(4, 4)

    def forward(self, x):
        long = gated = short = None
        for step in x.unbind(1):
            long = self.lstm(step, long)
            gated = self.gru(long[0], gated)
            short = self.rnn(gated, short)
        return self.head(short)


class Standardised(nn.Linear):
    """A Linear that computes something of its own."""

    def forward(self, input):
        weight = (self.weight - self.weight.mean(1, keepdim=True)) / (self.weight.std() + 1)
        return F.linear(input, weight, self.bias)


class Odd(nn.Module):
    """Weights used without their module, a module called twice, normed and frozen weights."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(10, 10)
        self.standard = Standardised(10, 8)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 10))
        self.backbone = nn.Linear(10, 10)
        self.backbone.requires_grad_(False)
        self.half_frozen = nn.Linear(10, 10)
        self.half_frozen.weight.requires_grad_(False)
        self.bilinear = nn.Bilinear(10, 10, 6)
        self.scale = nn.Parameter(torch.rand(6))
        self.head = nn.Linear(6, 4)
        self.register_buffer("table", torch.randn(10))

    def forward(self, x):
        y = F.relu(self.shared(x))
        y = self.shared(y) + F.linear(y + self.table, self.shared.weight.T)  # and used without it
        y = self.half_frozen(self.backbone(self.normed(torch.tanh(self.standard(y)))))
        return self.head(self.bilinear(y, x) * self.scale)


class Adapted(nn.Module):
    """Low-rank adapters beside frozen layers, as PEFT makes them."""

    def __init__(self):
        super().__init__()
        self.base, self.top = nn.Linear(10, 12), nn.Linear(12, 4)
        self.base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(10, 3, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(3, 12, bias=False)})

    def forward(self, x):
        low = self.lora_B["default"](self.lora_A["default"](x))
        return self.top(F.relu(self.base(x) + 0.5 * low))


class Sometimes(nn.Module):
    """A weight that some batches look up rows of, and others use behind an adapter."""

    def __init__(self):
        super().__init__()
        self.adapter, self.shared = nn.Linear(10, 10), nn.Linear(10, 10, bias=False)
        self.norm, self.head = nn.LayerNorm(10), nn.Linear(10, 4)
        self.fixed = nn.Parameter(torch.rand(10), requires_grad=False)

    def forward(self, x):
        adapted, way = self.adapter(x), int(x.detach().argmax())
        if way % 3 == 0:
            hidden = self.shared(x)
        elif way % 3 == 1:
            hidden = F.embedding(x.detach().argmax(1), self.shared.weight)
        else:
            hidden = F.linear(adapted, self.shared.weight, self.fixed)
        return self.head(F.relu(hidden)) + self.norm(adapted).mean()


class ByHand(nn.Module):
    """Running statistics without a function of torch."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(10, 8), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("running_mean", torch.zeros(8))
        self.register_buffer("running_var", torch.ones(8))

    def forward(self, x):
        y = self.first(x)
        var, mean = torch.var_mean(y, 0)
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean), 0.1)
                self.running_var.lerp_(var.to(self.running_var), 0.1)
        else:
            mean, var = self.running_mean, self.running_var
        return self.head((y - mean) / (var + 1e-5).sqrt() * self.scale)


def images(*shape):
    return lambda number: torch.randn(number, *shape)


def tokens(length=6, vocabulary=11):
    return lambda number: torch.randint(0, vocabulary, (number, length))


ZOO = {
    "convolutions": (Convolutions, images(3, 12)),
    "volumes": (Volumes, images(1, 5, 5, 5)),
    "tokens": (Tokens, tokens()),
    "cross-attention": (CrossAttention, images(5, 10)),
    "fused-attention": (FusedAttention, images(5, 10)),
    "recurrent": (Recurrent, images(5, 10)),
    "projected": (Projected, images(5, 10)),
    "cells": (Cells, images(5, 10)),
    "odd": (Odd, images(10)),
    "adapted": (Adapted, images(10)),
    "sometimes": (Sometimes, images(10)),
    "by-hand": (ByHand, images(10)),
}


def batches(make_inputs, number=3, size=6, classes=4) -> list[tuple[Tensor, Tensor]]:
    return [(make_inputs(size), torch.randint(0, classes, (size,))) for _ in range(number)]
