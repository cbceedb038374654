"""A small vision transformer, and a small text transformer that predicts every next token."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedplt.errors import ConfigError


class Block(nn.Module):
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
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(depth)))
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
        self.blocks = nn.Sequential(*(Block(width, num_heads, causal=True) for _ in range(depth)))
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
