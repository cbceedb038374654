"""The paper's fully connected network and ResNet-8, a small CNN, and two small transformers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
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


_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(8, channels),
    "none": lambda channels: nn.Identity(),
}


class ResNetBlock(nn.Module):
    """Two 3x3 convolutions and a parameter-free shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.norm1 = _NORMS[norm](outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2 = _NORMS[norm](outputs)
        self.stride, self.new_channels = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(y + F.pad(shortcut, (0, 0, 0, 0, 0, self.new_channels)))


class ResNet8(nn.Module):
    """ResNet-8 for 32x32 images, as the paper counts it; ``norm``: "batch", "group" or "none".

    Convolutions have biases, shortcuts have no parameters (they subsample, and pad new channels
    with zeros at the end). Grouped as stem, block 1, 2, 3 and fc, the convolutions and the
    classifier have 448, 4640, 13888, 55424 and 650 parameters; normalization layers add two per
    channel.

    >>> sum(p.numel() for p in ResNet8(norm="none").parameters())
    75050
    """

    def __init__(self, num_channels: int = 3, num_classes: int = 10, norm: str = "batch") -> None:
        super().__init__()
        if norm not in _NORMS:
            raise ConfigError(f"resnet8: norm is {norm!r}. {did_you_mean(norm, _NORMS)}")
        self.stem = nn.Conv2d(num_channels, 16, 3, padding=1)
        self.stem_norm = _NORMS[norm](16)
        self.block1 = ResNetBlock(16, 16, 1, norm)
        self.block2 = ResNetBlock(16, 32, 2, norm)
        self.block3 = ResNetBlock(32, 64, 2, norm)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        x = self.block3(self.block2(self.block1(x)))  # (batch, 64, 8, 8)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class TransformerBlock(nn.Module):
    """Attention and a two-layer network, each on a normalized copy of the residual stream."""

    def __init__(self, width: int, num_heads: int, causal: bool = False) -> None:
        super().__init__()
        if width % num_heads:
            raise ConfigError(
                f"transformer: width is {width}, num_heads {num_heads}; "
                "the first must be a multiple of the second."
            )
        self.num_heads, self.causal = num_heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).view(*x.shape[:-1], 3, self.num_heads, -1)
        # Each (batch, heads, tokens, width / heads).
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed: Tensor = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        mixed = self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x + mixed


class VisionTransformer(nn.Module):
    """Classifies images by the final state of the class token."""

    def __init__(
        self,
        image_size: int = 32,
        patch_size: int = 4,
        num_channels: int = 3,
        width: int = 64,
        depth: int = 4,
        num_heads: int = 4,
        num_classes: int = 10,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise ConfigError(
                f"vit: image_size is {image_size}, patch_size {patch_size}; "
                "the first must be a multiple of the second."
            )
        num_patches = (image_size // patch_size) ** 2
        self.patches = nn.Conv2d(num_channels, width, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, num_patches + 1, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, num_heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)  # (batch, patches, width)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(x)[:, 0]))
        return logits


class TextTransformer(nn.Module):
    """A causal language model whose output layer is its embedding (tied weights).

    Takes (batch, tokens) and returns (batch, vocabulary, tokens), as cross-entropy expects.
    """

    def __init__(
        self,
        vocabulary: int = 128,
        context: int = 64,
        width: int = 64,
        depth: int = 2,
        num_heads: int = 4,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, num_heads, causal=True) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits.transpose(1, 2)
