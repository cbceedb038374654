"""A small convolutional network for quick trials."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


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
