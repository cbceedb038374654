"""Pairs of layers, and what may lie between them.

Where the first is the lowest trained layer, the second computes gradients only of the columns that
the first's trained rows need: if nobody looks at them, and channels keep their places.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.fuzzed_layers import LENGTH, WIDTH

HIDDEN = 6


def _hooked(hidden):
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient.flip(1))
    return hidden


def _retained(hidden):
    if hidden.requires_grad:
        hidden.retain_grad()
    return hidden


BETWEEN = {
    "relu": torch.relu,
    "hook": lambda hidden: _hooked(torch.relu(hidden)),
    "retained gradient": lambda hidden: _retained(torch.relu(hidden)),
    "flip in odd batches": lambda hidden: hidden.flip(1) if len(hidden) % 2 else hidden,
    "roll": lambda hidden: torch.tanh(hidden).roll(1, 1),
    "sum over channels": lambda hidden: hidden - hidden.mean(1, keepdim=True),
    "product": lambda hidden: hidden * torch.sigmoid(hidden),
}


class Pair(nn.Module):
    """Two layers of samples (rows), of convolutions, or of a convolution and a flat Linear.

    One example alone has no batch axis, and as many channels as rows here.
    """

    def __init__(self, kind, between):
        super().__init__()
        self.kind, self.between = kind, between
        if kind == "rows":
            self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        elif kind == "one example":
            self.first = nn.Conv2d(1, LENGTH, 3, padding=1)
            self.second = nn.Conv1d(LENGTH, LENGTH, 1)
        elif kind == "one flat example":
            self.first = nn.Conv2d(1, LENGTH, 3, padding=1)
            self.second = nn.Linear(LENGTH * WIDTH, WIDTH)
        else:
            self.first = nn.Conv1d(WIDTH, HIDDEN, 3, padding=1)
            flat = nn.Linear(HIDDEN * LENGTH, WIDTH)
            self.second = nn.Conv1d(HIDDEN, WIDTH, 1) if kind == "convolutions" else flat

    def forward(self, x):
        given = x.reshape(-1, WIDTH) if self.kind == "rows" else x.transpose(1, 2)
        if self.kind.startswith("one"):
            given = x.mean(0, keepdim=True)
        hidden = self.first(given)
        if self.between == "norm":
            hidden = nn.functional.instance_norm(hidden) if hidden.ndim == 3 else hidden
        elif self.between in BETWEEN:
            hidden = BETWEEN[self.between](hidden)
        if self.kind in ("flat", "one flat example"):
            hidden = hidden.flatten(1)
        y = self._second(hidden)
        if self.kind == "rows":
            return y.view_as(x)
        if self.kind.startswith("one"):
            return y.mean(0).expand_as(x) if self.kind == "one example" else y.expand_as(x)
        return y.transpose(1, 2) if self.kind == "convolutions" else y.unsqueeze(1).expand_as(x)

    def _second(self, hidden):
        if self.between == "checkpoint":
            return checkpoint(self.second, hidden, use_reentrant=False)
        if self.between == "used twice":
            return self.second(hidden) + self.second(torch.tanh(hidden))
        y = self.second(hidden)
        if self.between == "gradient" and hidden.requires_grad:
            (gradient,) = torch.autograd.grad(y.sum(), hidden, retain_graph=True)
            return y + 0.0 * gradient.sum()
        return y


KINDS = ("rows", "convolutions", "flat", "one example", "one flat example")
BETWEENS = (*BETWEEN, "norm", "checkpoint", "used twice", "gradient")
