"""Learn from 50,000 film reviews on 40 unequal devices whether a film was liked.

python -m examples.film_reviews.train [FOLDER_FOR_THE_RUN]
"""

import sys

import torch

import fedplt
from examples.film_reviews.reviews import reviews

WORDS = 64  # the last words of a review
VOCABULARY = 5000
RATIOS = [1.0] * 8 + [0.3] * 16 + [0.1] * 16


class Reader(torch.nn.Module):
    """A small transformer: words, one layer of attention, the mean over words, two outputs."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(VOCABULARY, width, padding_idx=0)
        torch.nn.init.normal_(self.words.weight, std=0.1)
        self.places = torch.nn.Parameter(0.1 * torch.randn(WORDS, width))
        self.layer = torch.nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True
        )
        self.head = torch.nn.Linear(width, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        empty = words == 0
        states = self.layer(self.words(words) + self.places, src_key_padding_mask=empty)
        kept = (~empty).unsqueeze(-1).float()
        return self.head((states * kept).sum(1) / kept.sum(1))


def main() -> None:
    inputs, labels = reviews(WORDS, VOCABULARY)
    print(f"{len(labels):,} reviews, {labels.float().mean():.0%} of them good")
    held_out = torch.arange(len(labels)) % 10 == 0
    torch.manual_seed(0)
    model = Reader()
    history = fedplt.train(
        model,
        (inputs[~held_out], labels[~held_out]),
        (inputs[held_out], labels[held_out]),
        ratios=RATIOS,
        rounds=30,
        split={"alpha": 1.0},
        cut={"always": ["head", "places"]},
        sampling={"name": "uniform", "num_clients": 20},
        training={
            "optimizer": "adam",
            "learning_rate": 0.003,
            "local_steps": 10,
            "batch_size": 32,
        },
        evaluation={"every": 10},
        out=sys.argv[1] if sys.argv[1:] else None,
    )
    for record in history.evaluated:
        megabytes = record.total.bytes_up / 1e6
        score = history.metric.text(record.score)
        print(f"round {record.round}: {score} of new reviews right, {megabytes:.1f} MB uploaded")


if __name__ == "__main__":
    main()
