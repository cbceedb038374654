"""ResNet-8 for 32x32 images, as the paper counts it.

Convolutions have biases, shortcuts have no parameters (they subsample, and pad new channels with
zeros at the end). Grouped as stem, block 1, 2, 3 and fc, the convolutions and the classifier have
448, 4640, 13888, 55424 and 650 parameters; normalization layers add two per channel.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedplt.errors import ConfigError, did_you_mean

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
    """ResNet-8 with ``norm`` ``"batch"``, ``"group"`` or ``"none"``.

    >>> sum(p.numel() for p in resnet8(norm="none").parameters())
    75050
    """
    return ResNet8(num_channels, num_classes, norm)
