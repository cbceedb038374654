"""A small text transformer that predicts every next token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedplt.models.vit import Block


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
