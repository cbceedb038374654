"""Runs with ``[privacy]``: the key, the noise, the clients, what is spent, what is refused."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedplt import ConfigError
from fedplt.federation.choose_clients import ClientSampler
from fedplt.federation.engine import Interrupted
from fedplt.federation.loop import Federation
from fedplt.federation.privacy_accounting import epsilon_after, noise_for, privacy_text
from fedplt.federation.run_folder.folder import RunFolder
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
        sampler = ClientSampler(job, secret and SimpleNamespace(secret=secret))
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


def on_nodes(**evaluation):
    return {"engine": {"name": "flower"}, "evaluation": {"on": "nodes", **evaluation}}


@pytest.mark.parametrize(
    ("settings", "key", "given"),
    [
        ({"sampling": {"name": "ocs", "budget": 2.0}}, "sampling.name", "'ocs' depends on"),
        ({"sampling": {"name": "uniform", "num_clients": 2}}, "sampling.name", "'uniform' is not"),
        ({"sampling": {"name": "all", "estimator": "unbiased"}}, "sampling.estimator", "out"),
        ({"server": {"weights": "examples"}}, "server.weights", "'equal'"),
        ({"server": {"weights": "equal", "min_clients": 2}}, "server.min_clients", "0"),
        ({"server": {"aggregation": "median"}}, "server.aggregation", "'mean'.*'median'"),
        ({"server": {"aggregation": "clipped-mean"}}, "server.aggregation", "'clipped-mean'"),
        ({"privacy": {"delta": 0.2}}, "privacy.delta", "below 0.2"),
        ({"privacy": {"noise_multiplier": 0.0}}, "privacy.noise_multiplier", "0"),
        (on_nodes(keep_best=True), "evaluation.keep_best", "True"),
        (on_nodes(stop_after=3), "evaluation.stop_after", "3"),
    ],
)
def test_what_would_void_the_guarantee_is_refused(settings, key, given):
    with pytest.raises(ConfigError, match=given) as caught:
        private_job(**settings)
    assert caught.value.key == key


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


def test_scores_on_data_of_the_server_may_choose_the_model():
    job = private_job(evaluation={"keep_best": True, "stop_after": 3})
    assert job.config.evaluation.stop_after == 3


class Killed(BaseException):
    """As SIGKILL: nothing is saved after it."""


class SeenEngine(FakeEngine):
    """Notes every model that a node sees; some nodes are away, and ``calls`` may kill the run."""

    def __init__(self, job, seen, away=(), calls=None):
        super().__init__(job)
        self.seen, self.away, self.calls = seen, set(away), calls
        self.round = 0

    def train(self, round, sent, assignments, block_weights=None, *, upload=True):
        self.round = round
        self._show(round, sent.state)
        return super().train(round, sent, assignments)

    def collect(self, clients):
        yield from super().collect([client for client in clients if client not in self.away])

    def evaluate(self, part, state):
        self._show(self.round + 1, state)
        return super().evaluate(part, state)

    def restore_local(self, tensors): ...

    def resume_after(self, rounds_done):
        self.round = max(0, rounds_done - 1)

    evaluate_clients = statistics = roster = use = FakeEngine.close  # not called; nodes have them

    def _show(self, round, state):
        self.seen.append((round, state.clone()))
        if self.calls is not None:
            self.calls()


def killed_after(number):
    calls = iter(range(number))

    def call(*_):
        if next(calls, None) is None:
            raise Killed

    return call


def resumed(folder, seen, **settings):
    job = private_job(sampling={"name": "all"}, **{"rounds": 3, **settings})
    run = Federation(job, SeenEngine(job, seen, away=[0]), RunFolder.open(folder))
    run.resume()
    return run, run.run()


def models_by_round(seen):
    models = {}
    for round, state in seen:
        if not any(torch.equal(state, other) for other in models.setdefault(round, [])):
            models[round].append(state)
    return models


@pytest.mark.parametrize("where", ["nodes", "disk"])
def test_a_killed_round_is_never_released_twice_with_the_same_noise(tmp_path, monkeypatch, where):
    """Killed at every moment, and resumed with a client away: each round has one model."""
    record = "fedplt.federation.privacy_accounting.privacy_record"
    monkeypatch.setattr(record, lambda *_: {})  # takes long
    number, was_killed = 0, True
    while was_killed:
        seen, was_killed = [], False
        job = private_job(rounds=2, sampling={"name": "all"}, checkpoint_every=2)
        path = tmp_path / str(number)
        kill = killed_after(number)
        engine = SeenEngine(job, seen, calls=kill if where == "nodes" else None)
        run = Federation(job, engine, run_folder(path, job))
        run.start()
        with monkeypatch.context() as patch:
            if where == "disk":
                for name in ("replace", "fsync", "link"):
                    patch.setattr(os, name, watched(getattr(os, name), kill))
            try:
                run.run()
            except Killed:
                was_killed = True
        resumed(path, seen, rounds=2)
        models = models_by_round(seen)
        assert set(models) == {0, 1, 2}
        assert all(len(found) == 1 for found in models.values()), number
        rounds = [record.round for record in RunFolder.open(path).rounds()]
        assert rounds == [1, 2]
        number += 1
    assert number > 3


def watched(change, kill):
    def call(*arguments, **named):
        change(*arguments, **named)
        kill()

    return call


@pytest.mark.parametrize("seed", [None, 3])
def test_a_round_repeated_after_damage_gets_other_noise_and_counts_twice(tmp_path, seed):
    """The damaged checkpoint's model was seen: the difference of the two is not the update."""
    settings = {"privacy": {"noise_seed": seed}}
    seen, path = [], tmp_path / "run"
    job = private_job(rounds=3, sampling={"name": "all"}, **settings)
    run = Federation(job, SeenEngine(job, seen, calls=killed_after(3)), run_folder(path, job))
    run.start()
    with pytest.raises(Killed):
        run.run()  # in the evaluation after the second round
    newest = path / "checkpoint.safetensors"
    newest.write_bytes(newest.read_bytes()[:-8])
    with pytest.warns(UserWarning, match="checkpoint before"):
        again, history = resumed(path, seen, **settings)
    first, second = models_by_round(seen)[2]
    moved = (first - second).abs()
    assert len(moved.unique()) > 0.9 * len(moved)  # noise; without it, all change alike or not
    assert history.privacy["repeats"] == 1
    expected = epsilon_after(4, noise_multiplier=1.0, probability=1.0, delta=1e-5)
    assert history.privacy["epsilon"] == pytest.approx(expected, rel=1e-5)
    assert "1 run again" in privacy_text(history.privacy)
    assert RunFolder.open(path).load_checkpoint(job).extras["privacy.repeats"] == 1
    assert again.privacy.secret != run.privacy.secret


def test_a_run_set_back_to_an_earlier_checkpoint_gets_other_noise(tmp_path):
    seen, path = [], tmp_path / "run"
    job = private_job(rounds=3, sampling={"name": "all"})
    run = Federation(job, SeenEngine(job, seen), run_folder(path, job))
    run.start()
    first = (path / "checkpoint.safetensors").read_bytes()
    run.run()
    (path / "checkpoint.safetensors").write_bytes(first)  # from a backup; the records are newer
    again, history = resumed(path, seen)
    assert [len(found) for _, found in sorted(models_by_round(seen).items())] == [1, 2, 2, 2]
    assert again.privacy.repeats == history.privacy["repeats"] == 3
    (path / "checkpoint.safetensors").write_bytes(first)  # and once more
    third, _ = resumed(path, seen)
    assert len({each.privacy.secret.key for each in (run, again, third)}) == 3
    assert [len(found) for _, found in sorted(models_by_round(seen).items())] == [1, 3, 3, 3]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
@pytest.mark.parametrize("seed", [None, 3])
def test_only_the_owner_may_read_the_key(tmp_path, monkeypatch, umask, seed):
    modes = {}
    replace = os.replace

    def watch(old, new, **named):
        modes.setdefault(Path(new).name, set()).add(stat.S_IMODE(Path(old).stat().st_mode))
        replace(old, new, **named)

    job = private_job({"noise_seed": seed}, rounds=2)
    folder = run_folder(tmp_path / "run", job)
    monkeypatch.setattr(os, "replace", watch)
    before = os.umask(umask)
    try:
        folder.write_config(job.config)
        run = Federation(job, FakeEngine(job), folder)
        run.start()
        (tmp_path / "run" / "checkpoint.safetensors").chmod(0o644)  # an older version wrote it
        run.round()
    finally:
        os.umask(before)
    secret = {"checkpoint.safetensors", "checkpoint.previous.safetensors"}
    secret |= set() if seed is None else {"config.toml"}
    for name in secret:
        assert modes[name] == {0o600}
        assert stat.S_IMODE((tmp_path / "run" / name).stat().st_mode) == 0o600
