"""The paper's fully connected network and ResNet-8, and a small CNN for quick trials."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedplt.errors import ConfigError, did_you_mean


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


def cnn(
    num_channels: int = 1, image_size: int = 28, width: int = 16, num_classes: int = 10
) -> nn.Sequential:
    """Two 3x3 convolutions with pooling, then two linear layers.

    >>> sum(p.numel() for p in cnn().parameters())
    206922
    """
    pixels = (image_size // 4) ** 2
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(num_channels, width, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(width, 2 * width, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(2 * width * pixels, 8 * width),
            relu3=nn.ReLU(),
            fc2=nn.Linear(8 * width, num_classes),
        )
    )


NORMS = ("batch", "group", "none")


def _norm(kind: str, channels: int) -> nn.Module:
    if kind not in NORMS:
        raise ConfigError(f"resnet8: norm is {kind!r}. {did_you_mean(kind, NORMS)}")
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(8, channels) if kind == "group" else nn.Identity()


class Block(nn.Module):
    """Two 3x3 convolutions and a parameter-free shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.norm1 = _norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2 = _norm(norm, outputs)
        self.stride, self.new_channels = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(y + F.pad(shortcut, (0, 0, 0, 0, 0, self.new_channels)))


class ResNet8(nn.Module):
    def __init__(self, num_channels: int, num_classes: int, norm: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(num_channels, 16, 3, padding=1)
        self.stem_norm = _norm(norm, 16)
        self.block1 = Block(16, 16, 1, norm)
        self.block2 = Block(16, 32, 2, norm)
        self.block3 = Block(32, 64, 2, norm)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        x = self.block3(self.block2(self.block1(x)))  # (batch, 64, 8, 8)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet8(num_channels: int = 3, num_classes: int = 10, norm: str = "batch") -> ResNet8:
    """ResNet-8 for 32x32 images, as the paper counts it; ``norm``: "batch", "group" or "none".

    Convolutions have biases, shortcuts have no parameters (they subsample, and pad new channels
    with zeros at the end). Grouped as stem, block 1, 2, 3 and fc, the convolutions and the
    classifier have 448, 4640, 13888, 55424 and 650 parameters; normalization layers add two per
    channel.

    >>> sum(p.numel() for p in resnet8(norm="none").parameters())
    75050
    """
    return ResNet8(num_channels, num_classes, norm)
