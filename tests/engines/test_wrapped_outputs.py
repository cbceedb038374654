"""Models that wrap their outputs, and items with their labels inside, as Hugging Face has them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import fedplt
from tests.support.jobs import blobs


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


class Wrapping(nn.Module):
    """Takes its inputs by name, and returns an object."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, points, scale=None):
        return Output(self.linear(points if scale is None else points * scale))


class WithLoss(Wrapping):
    """Computes its own loss."""

    def forward(self, points, scale=None, labels=None):
        logits = super().forward(points, scale).logits
        loss = None if labels is None else F.cross_entropy(logits, labels, label_smoothing=0.1)
        return Output(logits, loss)


class Tokenized(Dataset):
    def __init__(self, number, seed=0):
        self.points, self.labels = blobs(number, seed)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"points": self.points[index], "labels": int(self.labels[index])}


def train(model, data, validation, **settings):
    return fedplt.train(
        model, data, validation, ratios=[1.0, 0.5], rounds=4, seed=3,
        **{"training": {"learning_rate": 0.5}, "engine": {"workers": 1}, **settings},
    )  # fmt: skip


def test_wrapped_outputs_are_trained_like_plain_ones():
    points, labels = blobs(60)
    found = []
    for data in (Tokenized(60), ({"points": points}, labels), {"points": points, "labels": labels}):
        torch.manual_seed(0)
        model = Wrapping()
        history = train(model, data, data)
        found.append((history.scores, history.rounds[-1].loss, model.linear.weight.sum().item()))
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 3))
    history = train(plain, (points, labels), (points, labels))
    found.append((history.scores, history.rounds[-1].loss, plain[0].weight.sum().item()))
    assert found[0] == found[1] == found[2] == found[3]
    assert history.scores[-1] > 0.9


def test_a_masked_loss_needs_a_tensor():
    masked = {"name": "fedplt", "masked_loss": True}
    with pytest.raises(fedplt.ConfigError, match="not a Output"):
        train(Wrapping(), Tokenized(60), Tokenized(9), method=masked)


def test_a_models_own_loss_is_used():
    history = train(WithLoss(), Tokenized(60), Tokenized(30, 1))
    assert history.scores[-1] > 0.9
    assert history.rounds[-1].loss > 0.25  # the smallest loss with these smoothed labels


class NextToken(nn.Module):
    """Its labels are its inputs, as those of a causal language model."""

    def __init__(self):
        super().__init__()
        self.next = nn.Embedding(5, 5)

    def forward(self, tokens, labels=None):
        logits = self.next(tokens)
        loss = None if labels is None else F.cross_entropy(logits[:, :-1].mT, labels[:, 1:])
        return Output(logits, loss)


def test_models_that_predict_the_next_token():
    tokens = (torch.arange(40)[:, None] + torch.arange(9)) % 5
    data = {"tokens": tokens, "labels": tokens}
    settings = {"training": {"learning_rate": 20.0}}
    history = train(NextToken(), data, data, task="next-token", metric="token-accuracy", **settings)
    assert history.scores[-1] == 1.0
    for task, metric in (("classification", None), ("next-token", "accuracy")):
        with pytest.raises(fedplt.DataError, match="'next-token'"):
            train(NextToken(), data, data, task=task, metric=metric)


@pytest.mark.slow
@pytest.mark.transformers
@pytest.mark.skipif(find_spec("transformers") is None, reason="a dependency of developers only")
@pytest.mark.filterwarnings("ignore")  # of the package
def test_models_of_the_package():
    import transformers

    small = {"vocab_size": 12, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**small, resid_pdrop=0.0))
    tokens = (torch.arange(24)[:, None] + torch.arange(8)) % 5
    data = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    history = train(model, data, data, task="next-token", training={"learning_rate": 0.3})
    with torch.no_grad():
        mean = float(model.eval()(**data).loss)
    assert history.scores[-1] == pytest.approx(torch.tensor(mean).exp().item(), rel=1e-4)
    assert history.scores[-1] < history.scores[0]
    config = transformers.DistilBertConfig(
        vocab_size=12, dim=16, hidden_dim=32, n_heads=2, n_layers=1, max_position_embeddings=8,
        num_labels=5,
    )  # fmt: skip
    items = [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": int(row[0])}
        for row in tokens
    ]
    model = transformers.DistilBertForSequenceClassification(config)
    assert train(model, items, items).metric.name == "accuracy"
