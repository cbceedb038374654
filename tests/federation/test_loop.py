"""The round loop with an engine of plain functions: bad clients, costs, records."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedplt import RunError
from fedplt.federation.choose_clients import ClientSampler
from fedplt.federation.engine import Interrupted
from fedplt.federation.loop import Federation
from fedplt.planning.flops import exact_flops
from fedplt.server import Aggregator
from tests.support.engines import FakeEngine, run_fake
from tests.support.jobs import blob_job, run_folder


def test_everybody_moves_the_model():
    history, change = run_fake(blob_job(rounds=2))
    assert torch.allclose(change, torch.full_like(change, 2.0))
    assert [record.round for record in history.rounds] == [1, 2]


def test_one_bad_client_never_spoils_a_round():
    job = blob_job(rounds=1)
    size = job.plan.assignment(1).update_size
    poison = np.full(size, np.nan, dtype=np.float32)
    history, change = run_fake(job, {1: poison, 2: np.ones(3, dtype=np.float32)})
    assert torch.isfinite(change).all()
    rejected = history.rounds[0].rejected
    assert set(rejected) == {"1", "2"}
    assert "not finite" in rejected["1"]
    assert history.rounds[0].train_loss == 1.0  # of the others
    assert "holds 3 numbers" in rejected["2"]


def test_stops_when_every_update_is_bad():
    job = blob_job(rounds=1)
    poison = {
        k: np.full(job.plan.assignment(k).update_size, np.inf, dtype=np.float32)
        for k in range(job.plan.num_clients)
    }
    with pytest.raises(RunError, match="every client's update was refused"):
        run_fake(job, poison)


def test_one_node_that_is_asked_alone_does_not_stop_the_run():
    sampling = {"name": "uniform", "num_clients": 1}
    job = blob_job(rounds=6, sampling=sampling, engine={"name": "flower"})
    bad = {2: np.full(job.plan.assignment(2).update_size, np.inf, dtype=np.float32)}
    history, _ = run_fake(job, bad)
    chosen = [record.sampling["chosen"] for record in history.rounds]
    assert chosen == [[3], [2], [4], [4], [2], [4]]
    assert [list(record.rejected) for record in history.rounds] == [[], ["2"], [], [], ["2"], []]


def test_a_failure_of_the_server_names_the_client(monkeypatch):
    def add(self, update, assignment, weight):
        raise ZeroDivisionError

    monkeypatch.setattr(Aggregator, "add", add)
    with pytest.raises(ZeroDivisionError) as raised:
        run_fake(blob_job(rounds=1))
    assert raised.value.__notes__ == ["round 1, client 0"]


def test_any_error_about_one_update_is_a_refusal_of_that_client():
    job = blob_job(rounds=1)
    history, _ = run_fake(job, {1: BadLength(np.float32)})
    assert list(history.rounds[0].rejected) == ["1"]


class BadLength(np.ndarray):
    """An update that raises what nobody expects."""

    def __new__(cls, dtype):
        return np.zeros(3, dtype=dtype).view(cls)

    def __len__(self):
        raise OverflowError("too many")


def test_a_loss_that_is_not_finite_does_not_erase_the_mean():
    job = blob_job(rounds=1)
    engine = FakeEngine(job)
    train = engine.train
    engine.train = lambda *a, **o: [
        replace(each, loss=math.inf if each.client == 3 else each.loss) for each in train(*a, **o)
    ]
    assert Federation(job, engine).round().train_loss == 1.0


def test_costs_add_up():
    job = blob_job(rounds=3)
    history, _ = run_fake(job)
    last = history.rounds[-1]
    assert last.total.bytes_up == sum(record.cost.bytes_up for record in history.rounds)
    per_round = history.rounds[0].cost
    assert per_round.bytes_up < per_round.bytes_down
    model, examples = job.layers.size, job.num_examples
    expected = sum(
        (2 + 4 * r) * model * n for r, n in zip(job.plan.achieved_ratios, examples, strict=True)
    )
    assert per_round.paper_flops == pytest.approx(expected)
    exact = [exact_flops(job.plan.assignment(k)).total * examples[k] for k in range(len(examples))]
    assert per_round.flops == sum(exact)


def test_uniform_sampling_is_seeded_and_charged():
    job = blob_job(rounds=6, sampling={"name": "uniform", "num_clients": 2})
    sampler, everybody = ClientSampler(job), list(range(job.plan.num_clients))
    chosen = [sampler.before_training(round, everybody).asked for round in range(6)]
    again = ClientSampler(job)
    assert chosen == [again.before_training(round, everybody).asked for round in range(6)]
    assert all(len(set(clients)) == 2 and clients == sorted(clients) for clients in chosen)
    assert len({tuple(clients) for clients in chosen}) > 1
    history, _ = run_fake(job)
    assert [record.num_clients for record in history.rounds] == [2] * 6
    full, _ = run_fake(blob_job(rounds=1))
    assert history.rounds[0].cost.bytes_down * 5 == full.rounds[0].cost.bytes_down * 2


def test_an_interrupted_evaluation_is_done_again_on_resume(tmp_path):
    job = blob_job(rounds=3, checkpoint_every=100)
    engine = FakeEngine(job)
    folder = run_folder(tmp_path / "run", job)
    federation = Federation(job, engine, folder)
    before = federation.state.clone()
    evaluate, calls = engine.evaluate, []

    def stop_in_the_second(part, state):
        calls.append(part)
        if len(calls) == 2:
            raise Interrupted
        return evaluate(part, state)

    engine.evaluate = stop_in_the_second
    with pytest.raises(Interrupted):
        federation.run()
    saved = folder.load_checkpoint(job)
    assert saved.rounds_done == 2 and saved.pending.round == 2
    assert torch.allclose(saved.state, before + 2)
    assert [record.round for record in folder.rounds()] == [1]
    engine.restore_local = lambda tensors: None
    again = Federation(job, engine, folder)
    again.resume()  # no warning of a round without a record
    history = again.run()
    assert [record.score for record in history.rounds] == [0.75] * 3
    assert [record.round for record in folder.rounds()] == [1, 2, 3]
    assert torch.allclose(again.state, before + 3)


def test_evaluates_every_n_rounds_and_at_the_end():
    history, _ = run_fake(blob_job(rounds=5, evaluation={"every": 2}))
    assert [record.round for record in history.evaluated] == [2, 4, 5]


def test_per_client_scores():
    history, _ = run_fake(blob_job(rounds=1, evaluation={"per_client": True}))
    seen = history.rounds[0].client_scores
    assert seen["min"] <= seen["median"] <= seen["max"]
    assert seen["mean"] == pytest.approx(0.75, abs=0.1)
