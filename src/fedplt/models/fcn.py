"""The paper's fully connected network: three hidden layers and an output layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def fcn(
    num_inputs: int = 784,
    hidden: Sequence[int] = (512, 256, 128),
    num_classes: int = 10,
    relu_logits: bool = False,
) -> nn.Sequential:
    """``num_inputs -> 512 -> 256 -> 128 -> num_classes`` with ReLU between.

    ``relu_logits`` adds a ReLU after the last layer, as the paper authors' public code does, to
    test how much of their numbers it explains.

    >>> sum(p.numel() for p in fcn().parameters())
    567434
    >>> sum(p.numel() for p in fcn(num_inputs=3072).parameters())
    1738890
    """
    widths = [num_inputs, *hidden, num_classes]
    modules: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for index, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        if index > 1:
            modules[f"relu{index - 1}"] = nn.ReLU()
        modules[f"fc{index}"] = nn.Linear(inputs, outputs)
    if relu_logits:
        modules[f"relu{len(widths) - 1}"] = nn.ReLU()
    return nn.Sequential(modules)
