"""Runs with ``[privacy]``: the key, the noise, the clients, what is spent, what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedplt import ConfigError
from fedplt.federation.accounting import epsilon_after, noise_for
from fedplt.federation.engine import Interrupted
from fedplt.federation.loop import Federation
from fedplt.federation.privacy import privacy_text
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.sampler import ClientSampler
from fedplt.server import SecretStream
from tests.support.engines import FakeEngine
from tests.support.image_jobs import image_job
from tests.support.jobs import blob_job, run_folder

PRIVACY = {"clip": 0.5, "noise_multiplier": 1.0}
SETTINGS = {
    "server": {"weights": "equal"},
    "sampling": {"name": "bernoulli", "probability": 0.5},
}


def private_job(privacy=None, **settings):
    return blob_job(**{**SETTINGS, "privacy": {**PRIVACY, **(privacy or {})}, **settings})


def finished(job, folder=None):
    run = Federation(job, FakeEngine(job), folder)
    history = run.run()
    return history, run.state.clone()


def test_known_epsilons():
    """Those of dp-accounting's own tests, and Balle and Wang's formula for the plain Gaussian."""
    plain = epsilon_after(3, noise_multiplier=math.sqrt(3), probability=1.0, delta=0.126936)
    assert plain == pytest.approx(1, abs=1e-3)
    sampled = epsilon_after(3, noise_multiplier=0.5, probability=0.2, delta=0.15594)
    assert sampled == pytest.approx(1, abs=1e-3)
    rounds, sigma = 40, 6.0
    found = epsilon_after(rounds, noise_multiplier=sigma, probability=1.0, delta=1e-5)
    mu = math.sqrt(rounds) / sigma
    ends = norm.cdf(mu / 2 - found / mu), math.exp(found) * norm.cdf(-mu / 2 - found / mu)
    assert ends[0] - ends[1] == pytest.approx(1e-5, rel=1e-2)


@pytest.mark.slow  # a search
def test_the_noise_for_a_target():
    noise = noise_for(3.0, 20, probability=0.3, delta=1e-5)
    spent = epsilon_after(20, noise_multiplier=noise, probability=0.3, delta=1e-5)
    assert 2.98 < spent <= 3.0
    with pytest.raises(ConfigError, match="no noise multiplier"):
        noise_for(1e-9, 20, probability=0.3, delta=1e-5)


def test_the_records_and_the_result_state_epsilon(tmp_path):
    job = private_job(rounds=3, evaluation={"every": 3})
    folder = run_folder(tmp_path / "run", job)
    history, _ = finished(job, folder)
    assert [record.privacy is None for record in history.rounds] == [True, True, False]
    said = history.rounds[-1].privacy
    expected = epsilon_after(3, noise_multiplier=1.0, probability=0.5, delta=1e-5)
    assert said["epsilon"] == pytest.approx(expected, rel=1e-5)
    assert said["rounds"] == 3 and said["secret"]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["privacy"] == said
    assert RunFolder.open(tmp_path / "run").history().privacy == said
    assert "1e-05)-differential privacy after 3 rounds" in privacy_text(said)
    assert "can remove" not in privacy_text(said)
    assert "can remove" in privacy_text({**said, "secret": False})
    assert all(record.sampling is None for record in history.rounds)  # who was drawn is secret


@pytest.mark.slow
def test_a_given_seed_repeats_a_run_and_a_secret_key_does_not():
    runs = [finished(private_job({"noise_seed": seed}, rounds=2))[1] for seed in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    first, second = (finished(private_job(rounds=2))[1] for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_key(tmp_path, monkeypatch):
    keys = iter([b"a" * 16, b"b" * 16, b"c" * 16])
    monkeypatch.setattr(SecretStream, "fresh", lambda: SecretStream(next(keys)))
    _, whole = finished(private_job(rounds=4))
    monkeypatch.setattr(SecretStream, "fresh", lambda: SecretStream(b"a" * 16))
    job = private_job(rounds=4)
    folder = run_folder(tmp_path / "run", job)
    run = Federation(job, FakeEngine(job), folder)

    def stop(record):
        if record.round == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        run.run(stop)
    monkeypatch.setattr(SecretStream, "fresh", lambda: SecretStream(b"z" * 16))
    job = private_job(rounds=4)
    again = Federation(job, FakeEngine(job), folder)
    again.engine.restore_local = lambda tensors: None
    again.resume()
    again.run()
    assert torch.equal(again.state, whole)
    published = [p for p in (tmp_path / "run").iterdir() if not p.name.startswith("checkpoint")]
    assert published and not any(b"a" * 16 in path.read_bytes() for path in published)


def test_clients_are_drawn_independently_by_the_key():
    job = private_job(ratios=[0.2] * 20, sampling={"name": "bernoulli", "probability": 0.3})
    everybody = list(range(20))

    def drawn(secret, rounds=400):
        sampler = ClientSampler(job, secret)
        chosen = np.zeros((rounds, 20), dtype=bool)
        for round in range(rounds):
            chosen[round, sampler.before_training(round, everybody).clients] = True
        return chosen

    first = drawn(SecretStream(b"a" * 16))
    assert first.mean() == pytest.approx(0.3, abs=0.02)
    numbers = first.sum(axis=1)
    assert numbers.var() == pytest.approx(20 * 0.3 * 0.7, rel=0.3)  # not a fixed number
    assert (first != drawn(SecretStream(b"b" * 16))).mean() == pytest.approx(0.42, abs=0.03)
    assert not np.array_equal(first, drawn(None))


def test_a_round_in_which_every_update_is_bad_is_a_round_of_noise():
    job = private_job({"noise_seed": 1}, rounds=1, sampling={"name": "all"})
    bad = {k: np.full(job.plan.assignment(k).update_size, np.nan, np.float32) for k in range(5)}
    run = Federation(job, FakeEngine(job, bad))
    before = run.state.clone()
    history = run.run()
    assert len(history.rounds[0].rejected) == 5
    assert torch.isfinite(run.state).all() and (run.state != before).all()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sampling": {"name": "ocs", "budget": 2.0}}, "depends on the clients' data"),
        ({"sampling": {"name": "uniform", "num_clients": 2}}, "is not independent"),
        ({"sampling": {"name": "all", "estimator": "unbiased"}}, "no sampling.estimator"),
        ({"server": {"weights": "examples"}}, "server.weights = 'equal'"),
        ({"server": {"weights": "equal", "min_clients": 2}}, "min_clients = 0"),
        ({"server": {"aggregation": "median"}}, "server.aggregation = 'mean'"),
        ({"server": {"aggregation": "clipped-mean"}}, "server.aggregation = 'mean'"),
        ({"privacy": {"delta": 0.2}}, "must be below 0.2"),
        ({"privacy": {"noise_multiplier": 0.0}}, "noise_multiplier"),
        ({"engine": {"name": "flower"}}, "checkpoint_every = 1"),
    ],
)
def test_what_would_void_the_guarantee_is_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        private_job(**settings)


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("heterofl", {"static_norm": True}, "method.static_norm"),
        ("fedbn", {}, "method.local_norms"),
        ("fedplt", {}, "running statistic"),
    ],
)
def test_statistics_without_noise_are_refused(method, options, reason):
    job = image_job(method, "resnet8", options=options, privacy=PRIVACY, **SETTINGS)
    with pytest.raises(ConfigError, match=reason):
        Federation(job, FakeEngine(job))
