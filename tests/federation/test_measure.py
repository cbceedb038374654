"""One score from the evaluations of many clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedplt import ConfigError
from fedplt.client import METRICS, Evaluation
from fedplt.federation.loop import Federation
from fedplt.federation.measure import score_of_clients
from tests.support.jobs import blob_job

RMSE = METRICS["rmse"]


def on_own_data(squares):
    squares = np.array(squares, dtype=np.float64)
    sums = np.array([squares.sum()])
    score = RMSE.score(sums, len(squares))
    return Evaluation(float(squares.mean()), score, count=len(squares), sums=sums)


def test_the_score_of_all_examples_is_no_mean_of_scores():
    told = {1: on_own_data([16.0]), 0: on_own_data([1.0, 1.0, 2.0])}
    found, summary = score_of_clients(told, None, np.array([3, 100]), RMSE)
    assert found.score == np.sqrt(20 / 4)
    assert found.loss == 20 / 4
    assert (summary["max"], summary["min"]) == (4.0, RMSE.score(np.array([4.0]), 3))


def test_a_client_that_measured_something_else_is_left_out():
    told = {k: on_own_data([4.0]) for k in range(3)}
    told[1] = Evaluation(1.0, 9.0, count=5, sums=np.ones(3))
    with pytest.warns(UserWarning, match="client 1 measured another metric"):
        found, _ = score_of_clients(told, None, np.ones(3), RMSE)
    assert found.score == 2.0


def test_scores_by_label_need_a_mean():
    job = replace(blob_job(evaluation={"per_client": True}), metric=RMSE)
    with pytest.raises(ConfigError, match=r"evaluation.per_client.*a mean over.*RMSE is not"):
        Federation(job, engine=Silent())


class Silent:
    def local_tensors(self):
        return {}
