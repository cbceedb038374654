"""Runs with bad clients: what is refused, what is bounded, and warnings beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedplt import ClientUpdate, ConfigError
from fedplt.configuration import parse_config
from fedplt.federation import coverage_warnings, participants_warning
from fedplt.federation.job import with_claims
from fedplt.federation.loop import Federation
from tests.support.engines import FakeEngine, run_fake
from tests.support.jobs import blob_job


class Boastful(FakeEngine):
    """Client 1 claims to have seen very many examples, and moves the other way."""

    def collect(self, clients):
        for client, update in super().collect(clients):
            if client == 1:
                yield client, ClientUpdate(-update.values, 10**12, 1.0)
            else:
                yield client, update


def test_claimed_examples_are_not_believed():
    job = blob_job(rounds=1)
    run = Federation(job, Boastful(job))
    before = run.state.clone()
    history = run.run()
    assert "claims 1000000000000 examples" in history.rounds[0].rejected["1"]
    assert torch.allclose(run.state - before, torch.ones_like(before))


@pytest.mark.parametrize("rule", ["clipped-mean", "median", "trimmed-mean"])
def test_a_huge_update_moves_the_model_little(rule):
    job = blob_job(ratios=[1.0] * 5, rounds=1, server={"aggregation": rule})
    huge = np.full(job.plan.assignment(1).update_size, -1e6, dtype=np.float32)
    history, change = run_fake(job, {1: huge})
    assert change.abs().max() <= 1.5
    assert history.rounds[0].clipped == ({"1": 1e-6} if rule == "clipped-mean" else {})
    _, change = run_fake(blob_job(ratios=[1.0] * 5, rounds=1), {1: huge})
    assert change.abs().max() > 1e4


def test_a_hard_limit_refuses():
    job = blob_job(rounds=1, server={"max_rms": 2.0})
    huge = np.full(job.plan.assignment(1).update_size, 3.0, dtype=np.float32)
    history, change = run_fake(job, {1: huge})
    assert "root mean square 3; at most 2" in history.rounds[0].rejected["1"]
    assert torch.allclose(change, torch.ones_like(change))


def test_an_outlier_is_refused_and_its_bytes_count():
    job = blob_job(rounds=1, server={"max_medians": 5.0})
    huge = np.full(job.plan.assignment(1).update_size, 6.0, dtype=np.float32)
    history, change = run_fake(job, {1: huge})
    assert "6 times the median" in history.rounds[0].rejected["1"]
    assert torch.allclose(change, torch.ones_like(change))
    without, _ = run_fake(blob_job(rounds=1))
    assert history.rounds[0].cost.bytes_up == without.rounds[0].cost.bytes_up


def test_weights_are_equal_or_bounded():
    job = blob_job()
    most = int(np.median(job.num_examples))
    assert (blob_job(server={"weights": "equal"}).weights == 1).all()
    bounded = blob_job(server={"max_examples": most}).weights
    assert bounded.tolist() == np.minimum(job.num_examples, most).tolist()
    assert job.weights.tolist() == job.num_examples.tolist()


def test_what_nodes_say_is_bounded_in_the_configuration():
    config = blob_job().config
    made = with_claims(config, [100, 90, 10**12, 110, 120])
    assert made.clients.num_examples[2] == 10**12
    assert made.server.max_examples == 1100
    given = blob_job(server={"max_examples": 7}).config
    assert with_claims(given, [100] * 5).server.max_examples == 7
    median = blob_job(server={"aggregation": "median"}).config
    assert with_claims(median, [100] * 5).server.max_examples is None


def test_blocks_with_few_contributors_stay():
    _, change = run_fake(blob_job(rounds=1, server={"min_contributors": 3}))
    _, all_of_it = run_fake(blob_job(rounds=1))
    assert all_of_it.min() > 0.99
    assert {round(value) for value in change.tolist()} == {0, 1}


def test_thin_coverage_is_warned_of_beforehand():
    def warnings(ratios, **settings):
        job = blob_job(ratios=ratios, **settings)
        return coverage_warnings(job.config, job.plan)

    median = {"server": {"aggregation": "median"}}
    assert not warnings([0.2] * 5)
    assert not warnings([1.0] * 5, **median)
    thin = warnings([0.2] * 5, **median)
    assert len(thin) == 2 and "5 of its 8 sub-layers have fewer than 3 contributors" in thin[0]
    sampled = warnings([1.0] * 5, sampling={"name": "uniform", "num_clients": 2}, **median)
    assert "contributors on average" in sampled[0]
    few = warnings([0.5] * 5, server={"min_contributors": 3})
    assert "fewer than 3 contributors (server.min_contributors)" in few[0]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"server": {"aggregation": "median"}, "sampling": {"name": "ocs", "budget": 2.0}},
            "weighs each by one over its probability",
        ),
        (
            {
                "server": {"aggregation": "trimmed-mean"},
                "sampling": {"name": "uniform", "num_clients": 2, "estimator": "unbiased"},
            },
            "weighs each by one over its probability",
        ),
        ({"server": {"trim": 0.1}}, "does not use trim"),
        ({"server": {"clip": 3.0}}, "does not use clip"),
        ({"server": {"aggregation": "median", "max_examples": 3}}, "does not use max_examples"),
        ({"server": {"weights": "equal", "max_examples": 3}}, "does not use max_examples"),
        ({"server": {"aggregation": "krum"}}, "server.aggregation"),
        ({"sampling": {"name": "bernoulli"}}, "probability go together"),
    ],
)
def test_refusals(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        blob_job(**settings)


def test_a_median_over_contributors_is_not_over_participants():
    job = blob_job(
        method={"name": "fedplt", "normalizer": "participants"}, server={"aggregation": "median"}
    )
    with pytest.raises(ConfigError, match=r"method\.normalizer is 'participants'"):
        Federation(job, FakeEngine(job))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, None),
        ({"num_clients": 2}, "2 clients take part"),
        ({"sampling": {"name": "uniform", "num_clients": 2}}, "2 clients take part"),
        ({"sampling": {"name": "bernoulli", "probability": 0.4}}, "2 clients take part"),
        ({"engine": {"name": "flower"}}, "a round counts with 1 clients"),
        ({"engine": {"name": "flower"}, "min_clients": 2}, "a round counts with 2 clients"),
        ({"engine": {"name": "flower"}, "min_clients": 3}, None),
    ],
)
@pytest.mark.parametrize("rule", ["clipped-mean", "trimmed-mean", "median", "mean"])
def test_a_robust_rule_with_fewer_than_three_participants_is_warned_of(rule, settings, words):
    settings = dict(settings)
    number, least = settings.pop("num_clients", 5), settings.pop("min_clients", 0)
    server = {"aggregation": rule, "min_clients": least}
    clients = {"num_clients": number}
    text = participants_warning(parse_config({"server": server, "clients": clients, **settings}))
    if rule == "mean" or words is None:
        assert text == ""
    else:
        assert words in text and rule in text
