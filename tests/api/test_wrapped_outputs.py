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
    history = train(
        NextToken(), data, data, task={"name": "next-token", "metric": "token-accuracy"}, **settings
    )
    assert history.scores[-1] == 1.0
    for task, metric in (("classification", None), ("next-token", "accuracy")):
        with pytest.raises(fedplt.DataError, match="'next-token'"):
            train(NextToken(), data, data, task={"name": task, "metric": metric})


class Rows:
    """As a ``datasets.Dataset``: no torch Dataset; lists, text, and ``label``."""

    def __init__(self, number, seed=0, words=None):
        points, labels = blobs(number, seed)
        self.rows = [
            {
                "text": f"row {i}",
                "words": ["row", str(i)],
                "points": points[i].tolist()[:words],
                "label": int(labels[i]),
            }
            for i in range(number)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return dict(self.rows[index])


def test_rows_of_hugging_face_datasets_are_taken_as_they_come():
    points, labels = blobs(60)
    settings = {"split": "dirichlet"}
    found = []
    for data in (Rows(60), ({"points": points}, labels)):
        torch.manual_seed(0)
        found.append(train(Wrapping(), data, data, **settings).scores)
    assert found[0] == found[1]
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 3))  # does not take 'points' by name
    assert train(plain, Rows(60), Rows(60), **settings).scores == found[0]


def test_a_collate_function_pads_items_of_different_lengths():
    def padded(rows):
        points = torch.zeros(len(rows), 6)
        for number, row in enumerate(rows):
            points[number, : len(row["points"])] = torch.tensor(row["points"])
        return {"points": points, "labels": torch.tensor([row["label"] for row in rows])}

    data = Rows(60)
    for index, row in enumerate(data.rows):
        row["points"] = row["points"][: 6 - index % 2]
    with pytest.raises(fedplt.DataError, match="not alike"):
        train(Wrapping(), data, data)
    found = fedplt.TrainingData(data, data, collate=padded)
    history = train(Wrapping(), found, None, split="shards")
    assert history.scores[-1] > 0.8
    assert found.train.labels().tolist() == [row["label"] for row in data.rows]
    with pytest.raises(fedplt.DataError, match=r"collate fails.*number 0.*KeyError: 'word'"):
        wrong = fedplt.TrainingData(data, data, collate=lambda rows: rows[0]["word"])
        train(Wrapping(), wrong, None)
    with pytest.raises(fedplt.DataError, match=r"batch that collate makes.*'labels'"):
        unlabeled = fedplt.TrainingData(
            data, data, collate=lambda rows: {"points": torch.zeros(len(rows), 6)}
        )
        train(Wrapping(), unlabeled, None)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(8, 4), nn.Embedding(5, 4)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(1)


def test_users_and_items_are_two_inputs():
    users, items = torch.arange(40) % 8, torch.arange(40) % 5
    ratings = (users * items).float() / 10
    listed = [((users[i], items[i]), ratings[i]) for i in range(40)]
    found = []
    for data in (((users, items), ratings), listed, ({"user": users, "item": items}, ratings)):
        torch.manual_seed(0)
        found.append(train(Recommender(), data, data, task="regression").scores)
    assert found[0] == found[1] == found[2]
    assert found[0][-1] < found[0][0]
    with pytest.raises(fedplt.DataError, match="39 inputs 1 and 40 targets"):
        train(Recommender(), ((users, items[:39]), ratings), listed)


@pytest.mark.parametrize("kind", ["int64", "bool", "float32"])
def test_one_hot_labels(kind):
    points, labels = blobs(60)
    one_hot = F.one_hot(labels, 3).to(getattr(torch, kind))
    settings = {"split": "dirichlet"}
    found = []
    for targets in (labels, one_hot):
        torch.manual_seed(0)
        data = (points, targets)
        found.append(train(nn.Linear(6, 3), data, data, **settings).scores)
    assert found[0] == pytest.approx(found[1])
    several = one_hot.clone()
    several[7] = torch.tensor([1, 1, 0])
    with pytest.raises(fedplt.DataError, match="'multi-label'"):
        train(nn.Linear(6, 3), (points, several), (points, several))


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
