"""Evaluation in chunks, and as each client would see it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedplt import DataError
from fedplt.client.evaluation import (
    CHUNK,
    Evaluation,
    accuracy,
    combine,
    evaluate_chunk,
    label_shares,
    num_chunks,
)
from fedplt.data.samples import TensorSamples


def test_chunks_add_up_to_the_whole():
    inputs, targets = torch.randn(2 * CHUNK + 17, 4), torch.randint(0, 4, (2 * CHUNK + 17,))
    samples, model = TensorSamples(inputs, targets), nn.Identity()
    assert num_chunks(samples) == 3
    got = combine(evaluate_chunk(model, samples, i, F.cross_entropy, accuracy) for i in range(3))
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


def test_a_mean_metric_works_but_not_per_client():
    samples = TensorSamples(torch.randn(10, 1), torch.randn(10, 1))
    metric = lambda outputs, targets: -F.l1_loss(outputs, targets)  # noqa: E731
    got = combine([evaluate_chunk(nn.Identity(), samples, 0, F.mse_loss, metric)])
    assert got.score == pytest.approx(-float(F.l1_loss(*samples.batch(torch.arange(10)))))
    with pytest.raises(DataError, match="integer labels"):
        got.client_scores(np.ones((1, 1)))
