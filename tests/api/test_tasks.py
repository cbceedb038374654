"""Tasks other than classification, from the data to what is shown."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedplt
from fedplt.client.metrics import METRICS
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.report.figures import comparison_figure, score_figure
from tests.support.jobs import blobs
from tests.support.pictures import svg_texts

FAST = {"training": {"learning_rate": 0.1, "batch_size": 16}, "engine": {"workers": 1}}


def slopes(number=120, seed=0):
    """Linear, and far from 0 to 1."""
    inputs = torch.randn(number, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, 40 * (inputs @ torch.tensor([1.0, 2.0, -1.0, 0.5]))


def train(data, model=None, out=None, **settings):
    torch.manual_seed(0)
    return fedplt.train(
        model or nn.Linear(4, 1), data, data,
        **{"ratios": [1.0, 1.0], "rounds": 3, "out": out, **FAST, **settings},
    )  # fmt: skip


CONFIG = """
name = "slopes"
rounds = 4
[data]
name = "own_slopes:load"
split = "iid"
[model]
name = "own_slopes:build"
[task]
name = "regression"
[clients]
num_clients = 2
[training]
learning_rate = 0.1
[engine]
workers = 1
"""
CODE = """
import torch
import fedplt
from tests.api.test_tasks import slopes

def load():
    return fedplt.TrainingData(
        fedplt.TensorSamples(*slopes()), fedplt.TensorSamples(*slopes(60, 1)),
        fedplt.TensorSamples(*slopes(60, 2)),
    )

def build():
    return torch.nn.Linear(4, 1)

def worst(outputs, targets):
    return (outputs[:, 0] - targets).abs()

own = fedplt.Metric(worst, name="<error>", direction="lower", unit="km", format=".3f")
task = fedplt.Task("distances", lambda outputs, targets: worst(outputs, targets).mean(), own)
"""


@pytest.fixture
def slopes_toml(tmp_path, monkeypatch):
    (tmp_path / "own_slopes.py").write_text(CODE)
    path = tmp_path / "slopes.toml"
    path.write_text(CONFIG)
    monkeypatch.delitem(sys.modules, "own_slopes", raising=False)
    monkeypatch.syspath_prepend(tmp_path)  # puts sys.path back in the end
    return path


def test_a_regression_is_shown_as_one(fedplt, slopes_toml, tmp_path):
    done = fedplt("run", slopes_toml, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    history = RunFolder.open(tmp_path / "run").history()
    assert history.scores[0] > 2 * history.scores[-1]  # it learns, and lower is better
    assert history.best == history.rounds[-1]
    assert (history.metric.name, history.metric.direction) == ("RMSE", "lower")
    shown = METRICS["rmse"].text(history.scores[-1])
    assert f"RMSE {shown}  loss" in done.stdout and "% on the test" not in done.stdout
    page = (tmp_path / "run" / "report.html").read_text()
    assert "RMSE" in page and "validation accuracy" not in page
    figure = score_figure({"fedplt": [history]})
    assert figure.axes[0].get_ylabel() == "validation RMSE"
    assert figure.axes[0].get_ylim()[1] > history.scores[0]
    assert comparison_figure({"fedplt": [history]}).axes[0].get_ylabel() == "validation RMSE"
    done = fedplt("curve", tmp_path / "run", "--picture", tmp_path / "curve.svg")
    assert done.returncode == 0 and "%" not in done.stdout
    assert "validation RMSE" in svg_texts(tmp_path / "curve.svg")
    # A run that is continued measures with the same metric.
    assert fedplt("resume", tmp_path / "run", "--set", "task.metric=mae").returncode == 2


def test_a_task_by_import_path_is_read_without_its_code(fedplt, slopes_toml, tmp_path):
    setting = ["--set", "task.name=own_slopes:task", "--set", "rounds=1"]
    done = fedplt("run", slopes_toml, "--out", tmp_path / "run", *setting)
    assert done.returncode == 0, done.stderr
    (tmp_path / "own_slopes.py").unlink()
    metric = RunFolder.open(tmp_path / "run").history().metric
    assert (metric.name, metric.unit, metric.direction) == ("<error>", "km", "lower")
    assert json.loads((tmp_path / "run" / "metric.json").read_text())["format"] == ".3f"
    assert fedplt("report", tmp_path / "run").returncode == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "&lt;error&gt;" in page and "<error>" not in page


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("task.name=regresion", "'regression'"),
        ("task.metric=rsme", "'rmse'"),
        ("task.metric=own_slopes:worst", "fedplt.Metric instead"),
        ("task.loss=own_slopes:nothing", "cannot be imported"),
        ("task.name=own_slopes:own", "fedplt.Task instead"),
    ],
)
def test_mistakes_in_task(fedplt, slopes_toml, tmp_path, change, words):
    done = fedplt("run", slopes_toml, "--out", tmp_path / "run", "--set", change)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_tasks_from_python(tmp_path):
    history = train(slopes(), task={"name": "regression", "metric": "r2"}, out=tmp_path / "run")
    assert history.metric == METRICS["r2"].info and history.scores[-1] > 0.9
    config = RunFolder.open(tmp_path / "run").config()
    assert (config.task.name, config.task.metric) == ("regression", "r2")
    flat = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    task = {"loss": F.huber_loss, "metric": "mae"}
    history = train(slopes(), flat, tmp_path / "huber", task=task)
    assert history.metric.name == "MAE"
    assert RunFolder.open(tmp_path / "huber").config().task.loss == "(given from Python)"
    inputs, labels = blobs(60)
    several = F.one_hot(labels, 3)
    history = train((inputs, several), nn.Linear(6, 3), task="multi-label", rounds=25)
    assert history.scores[-1] > 0.9 and history.metric.name == "F1"
    with pytest.raises(fedplt.ConfigError, match=r"fedplt.Metric\(l1_loss"):
        train(slopes(), task={"name": "regression", "metric": F.l1_loss})


class Bigrams(nn.Module):
    def __init__(self, *, vocabulary_last):
        super().__init__()
        self.next = nn.Embedding(5, 5)
        self.vocabulary_last = vocabulary_last

    def forward(self, tokens):
        scores = self.next(tokens)
        return scores if self.vocabulary_last else scores.transpose(1, 2)


def bigrams(tokens, *, vocabulary_last, added=0, metric=None):
    torch.manual_seed(0)
    model = Bigrams(vocabulary_last=vocabulary_last)
    settings = {"rounds": 8, "training": {"learning_rate": 20.0}}
    task = {"name": "next-token", "metric": metric}
    return train((tokens[:, :-1], tokens[:, 1:] + added), model, task=task, **settings)


@pytest.mark.parametrize("metric", [None, "token-accuracy"])
def test_next_token(metric):
    """The vocabulary may be on the second axis or on the last one, as the ecosystem has it."""
    tokens = (torch.arange(40)[:, None] + torch.arange(9)) % 5
    found = [bigrams(tokens, vocabulary_last=last, metric=metric) for last in (False, True)]
    assert found[0].scores == pytest.approx(found[1].scores)
    for history in found:
        first, last = history.scores[0], history.scores[-1]
        assert last == 1.0 if metric else 5 > first > last >= 1
        assert history.metric == METRICS[metric or "perplexity"].info


@pytest.mark.parametrize("vocabulary_last", [False, True])
def test_tokens_that_may_be_on_either_axis_are_refused(vocabulary_last):
    tokens = (torch.arange(40)[:, None] + torch.arange(6)) % 5  # as many as the vocabulary has
    with pytest.raises(fedplt.DataError, match=r"\(5, 5\).*5 tokens.*another length"):
        bigrams(tokens, vocabulary_last=vocabulary_last)
    tokens = (torch.arange(40)[:, None] + torch.arange(9)) % 5
    with pytest.raises(fedplt.DataError, match=r"label 5 .*5 outputs"):
        bigrams(tokens, vocabulary_last=vocabulary_last, added=1)
