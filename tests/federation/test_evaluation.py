"""One score from the evaluations of many clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedplt import ConfigError
from fedplt.client import METRICS, Evaluation
from fedplt.federation.evaluation import Evaluator, score_of_clients
from fedplt.federation.loop import Federation
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


class OnNodes:
    """An engine whose clients give these evaluations."""

    def __init__(self, evaluations, failures=None):
        self.evaluations, self.failures = evaluations, failures or {}

    def evaluate_clients(self, part, state, clients):
        return self.evaluations


def measured(evaluations, metric=RMSE, failures=None, **settings):
    job = blob_job(engine={"name": "flower"}, evaluation={"on": "nodes", **settings})
    job = replace(job, metric=metric)
    measurement = Evaluator(job, OnNodes(evaluations, failures))
    return measurement, *measurement.of("validation", None)


def test_a_client_that_measured_something_else_is_left_out_and_named():
    told = {k: on_own_data([4.0]) for k in range(3)}
    told[1] = Evaluation(1.0, 9.0, count=5, sums=np.ones(3))
    with pytest.warns(UserWarning, match="client [13] was not evaluated"):
        measurement, found, _ = measured(told, failures={3: "away"})
    assert found.score == 2.0
    assert measurement.left_out["3"] == "away"
    assert "another metric" in measurement.left_out["1"]


def test_nobody_is_evaluated():
    with pytest.warns(UserWarning, match="client 0 was not evaluated"):
        measurement, *found = measured({}, failures={0: "away"})
    assert found == [None, None]
    assert measurement.left_out == {"0": "away"}


def right(number, count):
    return Evaluation(0.5, number / count, count=count, sums=np.array([float(number)]))


@pytest.mark.parametrize("count", [10**9, 10**15])
def test_nobody_counts_for_more_than_ten_times_the_median(count):
    told = {k: right(20, 100) for k in range(9)} | {9: right(count, count)}
    found, _ = score_of_clients(told, None, np.ones(10), METRICS["accuracy"])
    assert found.score == pytest.approx((9 * 20 + 1000) / 1900)
    told = {k: Evaluation(0.5, 0.2, num_examples=100) for k in range(9)}
    told[9] = Evaluation(0.5, 1.0, num_examples=count)
    found, _ = score_of_clients(told, None, np.ones(10), METRICS["accuracy"])
    assert found.score == pytest.approx((9 * 20 + 1000) / 1900)


def test_sums_without_limits_count_up_to_ten_times_the_median():
    told = {k: on_own_data([4.0] * 10) for k in range(4)}
    told[4] = Evaluation(4.0, 1e150, count=10, sums=np.array([1e300]))
    found, _ = score_of_clients(told, None, np.ones(5), RMSE)
    assert found.score == pytest.approx(np.sqrt((4 * 40 + 400) / 40))


def test_a_loss_that_is_missing_does_not_erase_the_others():
    told = {0: right(1, 2), 1: replace(right(1, 2), loss=np.nan)}
    found, _ = score_of_clients(told, None, np.ones(2), METRICS["accuracy"])
    assert found.loss == 0.5


@pytest.mark.parametrize(("combine", "score"), [("median", 0.3), ("trimmed-mean", 0.3)])
def test_a_robust_mean_of_the_clients_scores(combine, score):
    told = {k: right(20 + 10 * k, 100) for k in range(3)}
    told |= {3: replace(right(1000, 1000), loss=1e300), 4: right(0, 1000)}
    _, found, summary = measured(told, METRICS["accuracy"], combine=combine)
    assert found.score == pytest.approx(score) and found.loss == 0.5
    assert summary["mean"] == pytest.approx((20 + 30 + 40 + 1000) / 2300)


def test_a_robust_mean_needs_evaluations_of_clients():
    with pytest.raises(ConfigError, match=r"evaluation.combine.*evaluation.on = 'nodes'"):
        measured({}, on="server", combine="median")
    with pytest.raises(ConfigError, match="trim"):
        blob_job(engine={"name": "flower"}, evaluation={"trim": 0.1})


def test_scores_by_label_need_a_mean():
    job = replace(blob_job(evaluation={"per_client": True}), metric=RMSE)
    with pytest.raises(ConfigError, match=r"evaluation.per_client.*a mean over.*RMSE is not"):
        Federation(job, engine=Silent())


class Silent:
    def local_tensors(self):
        return {}
