"""Evaluation in chunks, and as each client would see it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedplt import ConfigError, DataError
from fedplt.client.evaluation import (
    CHUNK,
    Evaluation,
    combine,
    evaluate_chunk,
    label_shares,
    num_chunks,
)
from fedplt.client.metrics import METRICS, Metric, accuracy
from fedplt.client.tasks import TASKS
from fedplt.data.samples import TensorSamples


def test_chunks_add_up_to_the_whole():
    inputs, targets = torch.randn(2 * CHUNK + 17, 4), torch.randint(0, 4, (2 * CHUNK + 17,))
    samples, model = TensorSamples(inputs, targets), nn.Identity()
    assert num_chunks(samples) == 3
    chunks = [evaluate_chunk(model, samples, i, F.cross_entropy, accuracy) for i in range(3)]
    got = combine(chunks, accuracy)
    assert got.score == pytest.approx(float((inputs.argmax(1) == targets).float().mean()))
    assert got.loss == pytest.approx(float(F.cross_entropy(inputs, targets)), rel=1e-5)
    assert got.label_counts.tolist() == torch.bincount(targets).tolist()


def test_client_scores_follow_the_clients_labels():
    evaluation = Evaluation(0.0, 0.5, np.array([10, 10, 0]), np.array([10.0, 0.0, 0.0]))
    shares = label_shares(np.array([0, 0, 1, 1, 1, 2, 2, 0]), np.array([0, 2, 5, 7, 8]))
    assert shares.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    scores = evaluation.client_scores(shares)
    assert scores[[0, 1, 3]].tolist() == [1, 0, 1]
    assert np.isnan(scores[2])  # no evaluation example has this client's label
    wider = Evaluation(0.0, 0.5, np.array([10, 10, 5, 5]), np.array([10.0, 0.0, 5.0, 5.0]))
    assert wider.client_scores(shares).tolist() == [1, 0, 1, 1]
    narrower = Evaluation(0.0, 0.5, np.array([10]), np.array([10.0]))
    assert narrower.client_scores(shares)[[0, 3]].tolist() == [1, 1]


def evaluated(task, metric, outputs, targets):
    """By chunks, of a model that returns its inputs."""
    samples = TensorSamples(outputs, targets)
    loss = TASKS[task].loss
    chunks = [
        evaluate_chunk(nn.Identity(), samples, i, loss, metric) for i in range(num_chunks(samples))
    ]
    return combine(chunks, metric)


def test_metrics_that_are_no_means_are_exact_over_chunks():
    random = torch.Generator().manual_seed(0)
    number = CHUNK + 3
    outputs, targets = torch.randn(2, number, 2, generator=random) * torch.tensor([1.0, 50.0])
    targets[:5] += 100  # so that the mean of the chunks' scores would be far off
    error = outputs.double() - targets.double()
    spread = (targets.double() - targets.double().mean(0)).square().sum(0)
    expected = {
        "rmse": error.square().mean().sqrt(),
        "mae": error.abs().mean(),
        "r2": (1 - error.square().sum(0) / spread).mean(),
    }
    for name, value in expected.items():
        got = evaluated("regression", METRICS[name], outputs, targets)
        assert got.score == pytest.approx(float(value), rel=1e-12), name

    chosen, wanted = outputs > 0, torch.rand(number, 2, generator=random) > torch.tensor([0.5, 0.9])
    hits, wrong, missed = (
        (a & b).sum(0).double() for a, b in ((chosen, wanted), (chosen, ~wanted), (~chosen, wanted))
    )
    each = 2 * hits / (2 * hits + wrong + missed)
    both = 2 * hits.sum() / (2 * hits + wrong + missed).sum()
    assert evaluated("multi-label", METRICS["f1"], outputs, wanted).score == float(both)
    assert evaluated("multi-label", METRICS["macro-f1"], outputs, wanted).score == float(
        each.mean()
    )

    logits = torch.randn(number, 5, 3, generator=random)
    following = torch.randint(0, 5, (number, 3), generator=random)
    following[7:40, 1:] = -100  # padding is not counted
    got = evaluated("next-token", METRICS["perplexity"], logits, following)
    assert got.score == pytest.approx(float(F.cross_entropy(logits.double(), following).exp()))


def test_one_column_of_outputs_is_not_broadcast_against_targets():
    outputs, targets = torch.randn(6, 1), torch.randn(6)
    wanted = float((outputs[:, 0] - targets).square().mean())
    assert float(TASKS["regression"].loss(outputs, targets)) == pytest.approx(wanted)
    assert evaluated("regression", METRICS["rmse"], outputs, targets).score == pytest.approx(
        wanted**0.5
    )
    with pytest.raises(DataError, match="one number"):
        TASKS["regression"].loss(torch.randn(6, 2), targets)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (F.l1_loss, "not their mean"),
        (lambda outputs, targets: 3.0, "a float"),
        (lambda outputs, targets: outputs[:-1], "one number per example"),
        (lambda outputs, targets: outputs.repeat(1, 2), "finish="),
    ],
)
def test_metrics_that_cannot_be_summed_are_refused(function, words):
    mine = Metric(function, name="mine", direction="lower")
    with pytest.raises(DataError, match=words):
        evaluated("regression", mine, torch.randn(4, 1), torch.randn(4, 1))


def test_only_means_of_labelled_examples_have_client_scores():
    rmse = evaluated("regression", METRICS["rmse"], torch.randn(10, 1), torch.randn(10, 1))
    with pytest.raises(DataError, match="integer labels"):
        rmse.client_scores(np.ones((1, 1)))


def test_how_scores_are_shown_and_compared():
    rmse, r2 = METRICS["rmse"], METRICS["r2"]
    assert (accuracy.text(0.8416), accuracy.text(0.8416, 1)) == ("84.2 %", "84.16 %")
    assert (accuracy.label, accuracy.shown_limits) == ("accuracy (%)", (0, 100))
    assert (rmse.text(4285.9137), rmse.label, rmse.shown_limits) == ("4286", "RMSE", None)
    assert accuracy.better(0.8, 0.7) and not rmse.better(0.8, 0.7)
    assert rmse.reaches(0.7, 0.7) and rmse.best([3.0, 1.0]) == 1.0 and r2.best([-3, -1]) == -1
    assert type(rmse.info).from_json(rmse.info.to_json()) == rmse.info
    assert type(rmse.info).from_json({**accuracy.to_json(), "limits": [0, 1]}) == accuracy.info
    with pytest.raises(ConfigError, match="'higher' or 'lower'"):
        Metric(F.l1_loss, name="mine", direction="up")
    with pytest.raises(ConfigError, match="format"):
        Metric(F.l1_loss, name="mine", direction="lower", format="?")
