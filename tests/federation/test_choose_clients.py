"""Rounds with client sampling: who trains, who uploads, what it costs, what is written down."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from fedplt import RunError
from fedplt.federation.engine import Interrupted
from fedplt.federation.loop import Federation
from fedplt.planning import download_bytes, upload_bytes
from fedplt.sampling import RULES, sampling_probabilities
from tests.support.engines import NORMS, NormsEngine, sampling_federation
from tests.support.jobs import RATIOS, blob_job, run_folder


def test_with_fresh_norms_all_train_and_the_chosen_upload():
    run = sampling_federation(rounds=8, name="fedplt-ocs", budget=1.0)
    history, job = run.run(), run.job
    assert run.engine.trained == [[0, 1, 2, 3, 4]] * 8
    norms = [NORMS[k] for k in range(5)]
    p = sampling_probabilities(norms, job.num_examples, job.plan.achieved_ratios, 1.0)
    for record, uploaded in zip(history.rounds, run.engine.collected, strict=True):
        said = record.sampling
        assert said["chosen"] == uploaded
        assert record.num_clients == len(uploaded)
        np.testing.assert_allclose(said["probabilities"], p, rtol=1e-3)
        assert said["expected_cost"] == pytest.approx(1.0)
        assert said["variance"] <= said["uniform_variance"]
        assert said["variance_ratio"] <= 1
    assert len({tuple(uploaded) for uploaded in run.engine.collected}) > 1


def test_what_is_sent_is_charged():
    run = sampling_federation(name="fedplt-ocs", budget=1.0)
    cost = run.run().rounds[0].cost
    (chosen,) = run.engine.collected
    updates = sum(upload_bytes(run.job.plan.assignment(client)) for client in chosen)
    assert cost.bytes_up == updates + 5 * 8  # everybody's norm
    model = download_bytes(run.job.plan.assignment(0))
    assert cost.bytes_down == 5 * model + 5  # the model; upload or not
    last = sampling_federation(name="fedplt-ocs", budget=1.0, norms="last")
    cost = last.run().rounds[0].cost
    (chosen,) = last.engine.collected
    updates = sum(upload_bytes(run.job.plan.assignment(client)) for client in chosen)
    assert cost.bytes_up == updates
    assert cost.bytes_down == len(chosen) * model
    everybody = sampling_federation(name="all").run().rounds[0].cost
    assert cost.flops < everybody.flops


def test_with_last_known_norms_only_the_chosen_train():
    run = sampling_federation(rounds=30, name="fedplt-ocs", budget=1.0, norms="last", floor=0.2)
    history = run.run()
    chosen = [record.sampling["chosen"] for record in history.rounds]
    assert [clients for clients in chosen if clients] == run.engine.trained
    first, last = history.rounds[0].sampling, history.rounds[-1].sampling
    assert len(set(first["probabilities"])) == 1  # nothing is known yet
    ratios = run.job.plan.achieved_ratios
    assert min(last["probabilities"]) >= 0.2 * 1.0 / ratios.sum() - 1e-3
    best = sampling_probabilities([NORMS[k] for k in range(5)], run.job.num_examples, ratios, 1.0)
    expected = 0.8 * best + 0.2 / ratios.sum()
    np.testing.assert_allclose(last["probabilities"], expected, rtol=1e-3)


def test_nobody_chosen_leaves_the_model_as_it_was():
    run = sampling_federation(rounds=12, name="ocs", budget=0.3, norms="last")
    states = [run.state.clone()]
    history = run.run(lambda record: states.append(run.state.clone()))
    empty = [record.round for record in history.rounds if not record.num_clients]
    assert empty
    for number in empty:
        record = history.rounds[number - 1]
        assert torch.equal(states[number], states[number - 1])
        assert "nobody was chosen" in record.sampling["note"]
        assert math.isnan(record.train_loss)
        assert record.cost.bytes_up == record.cost.flops == 0
        json.dumps(record.to_json(), allow_nan=False)


def test_a_diverged_client_is_left_out_before_anybody_uploads():
    run = sampling_federation({**NORMS, 2: math.nan, 4: math.inf}, name="ocs", budget=3.0)
    record = run.run().rounds[0]
    assert set(record.rejected) == {"2", "4"}
    assert "nan" in record.rejected["2"]
    assert record.sampling["chosen"] == [0, 1, 3]  # the budget reaches for all others
    assert torch.isfinite(run.state).all()
    with pytest.raises(RunError, match="every client's update was refused"):
        sampling_federation(dict.fromkeys(range(5), math.nan), name="ocs", budget=3.0).run()


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize("norm", [-1.0, -1e-300, 1e200])
def test_a_number_that_is_no_norm_is_a_refusal_of_that_client(name, norm):
    record = sampling_federation({**NORMS, 2: norm}, name=name, budget=3.0).run().rounds[0]
    assert list(record.rejected) == ["2"] and f"{norm:g}" in record.rejected["2"]


def test_the_norm_of_a_refused_update_is_not_remembered():
    """Else a client is chosen, round after round, by a norm that was found to be wrong."""
    run = sampling_federation({**NORMS, 2: 1e9}, name="ocs", budget=5.0, norms="last")
    run.engine.failures = {2: "it said that the norm of its update is 1e+09; it is 3."}
    collect = run.engine.collect
    run.engine.collect = lambda clients: collect([k for k in clients if k != 2])
    run.round()
    assert math.isnan(run.sampler.tensors()["sampling.last_norms"][2])
    assert run.sampler.tensors()["sampling.last_norms"][4] == NORMS[4]


@pytest.mark.parametrize("name", list(RULES))
def test_a_budget_for_all_is_full_participation_bit_for_bit(name):
    everybody = sampling_federation(rounds=3, name="all")
    everybody.run()
    for estimator in ("unbiased", "renormalized"):
        run = sampling_federation(rounds=3, name=name, budget=5.0, estimator=estimator)
        run.run()
        assert torch.equal(run.state, everybody.state)


def changes(estimator, rounds=600, **sampling):
    """What each of many rounds added to the model, (rounds, numbers)."""
    run = sampling_federation(rounds=rounds, estimator=estimator, **sampling)
    run.state.zero_()
    states = [run.state.clone()]
    run.run(lambda record: states.append(run.state.clone()))
    return torch.stack(states).double().diff(dim=0).numpy()


def deviation(samples, expected):
    """Mean minus expectation of every block, in standard errors."""
    error = samples.std(axis=0) / math.sqrt(len(samples))
    return np.abs(samples.mean(axis=0) - expected) / np.maximum(error, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [
        *({"name": name, "budget": 1.2} for name in list(RULES)),
        {"name": "fedplt-ocs", "budget": 1.2, "norms": "last"},
        {"name": "uniform", "num_clients": 2},
    ],
    ids=lambda sampling: "-".join(map(str, sampling.values())),
)
def test_unbiased_is_unbiased_in_every_block_and_renormalized_is_not(sampling):
    expected = changes(None, rounds=1, name="all")[0]
    assert len(np.unique(expected.round(4))) > 2  # blocks differ
    assert deviation(changes("unbiased", **sampling), expected).max() < 5
    assert deviation(changes("renormalized", rounds=200, **sampling), expected).max() > 8


def test_large_fleets_are_summarised():
    run = blob_job([0.5] * 250, data={"min_examples": 1}, rounds=1,
                   sampling={"name": "ocs", "budget": 20.0})  # fmt: skip
    record = Federation(run, NormsEngine(run, dict.fromkeys(range(250), 2.0))).round()
    assert set(record.sampling["probabilities"]) == {"min", "median", "mean", "max", "num_certain"}
    assert record.sampling["probabilities"]["mean"] == pytest.approx(20 / 250)
    assert len(json.dumps(record.to_json())) < 2000


def test_known_norms_are_in_the_checkpoint(tmp_path):
    job = blob_job(rounds=4, sampling={"name": "ocs", "budget": 3.0, "norms": "last"})
    folder = run_folder(tmp_path / "run", job)
    run = Federation(job, NormsEngine(job), folder)
    run.run()
    again = Federation(job, NormsEngine(job), folder)
    again.resume()
    assert torch.equal(
        again.sampler.tensors()["sampling.last_norms"],
        run.sampler.tensors()["sampling.last_norms"],
    )
    assert not torch.isnan(again.sampler.tensors()["sampling.last_norms"]).all()
    assert len(RATIOS) == len(again.sampler.tensors()["sampling.last_norms"])


def test_an_interrupted_round_leaves_nothing_behind(tmp_path):
    """What later rounds depend on is saved as it was after the last complete round."""
    sampling = {"name": "ocs", "budget": 4.0, "norms": "last"}
    job = blob_job(rounds=3, sampling=sampling, diagnostics={"enabled": True, "window": 2})
    folder = run_folder(tmp_path / "run", job)
    engine = NormsEngine(job)
    run = Federation(job, engine, folder)
    collect, after_one = engine.collect, {}

    def remember(record):
        tensors = {**run.sampler.tensors(), **run.diagnostics.tensors()}
        after_one.update({name: tensor.clone() for name, tensor in tensors.items()})
        engine.norms = dict.fromkeys(range(5), 99.0)

    def stop_in_the_second(clients):
        yield from collect(clients)
        if run.rounds_done == 1:
            raise Interrupted

    engine.collect = stop_in_the_second
    with pytest.raises(Interrupted):
        run.run(remember)
    assert len(engine.trained) == 2
    saved = folder.load_checkpoint(job).extras
    assert after_one.keys() == saved.keys()
    for name, tensor in after_one.items():
        assert torch.equal(saved[name].nan_to_num(-1), tensor.nan_to_num(-1)), name


def test_the_sampler_bounds_how_many_are_drawn(monkeypatch):
    run = sampling_federation(rounds=1, name="bernoulli", probability=0.9)
    monkeypatch.setattr("fedplt.federation.choose_clients.most_numbers", lambda job: 3)
    with pytest.raises(RunError, match=r"round 1: .* clients were drawn, far above"):
        run.run()


class Liar(NormsEngine):
    """Client 2 reports a huge norm; what it sends then is refused."""

    def collect(self, clients):
        self.failures = {2: "it said that the norm of its update is 1e+18."} if 2 in clients else {}
        yield from super().collect([k for k in clients if k != 2])


def lied_to(**settings):
    job = blob_job(sampling={"name": "ocs", "budget": 1.0}, **settings)
    return job, Liar(job, {**NORMS, 2: 1e18})


def test_a_client_that_lies_about_its_norm_does_not_take_the_whole_budget(tmp_path):
    job, engine = lied_to(rounds=12, checkpoint_every=1)
    folder = run_folder(tmp_path / "run", job)
    rounds = Federation(job, engine, folder).run().rounds
    lies = [record.round for record in rounds if record.sampling["chosen"] == [2]]
    assert lies == [1, 3, 6, 11]  # then after 1, 2, 4, ... rounds
    assert "4 chosen updates in a row" in rounds[-1].rejected["2"]
    assert sum(len(record.sampling["chosen"]) for record in rounds if record.round not in lies) > 4
    job, engine = lied_to(rounds=14, checkpoint_every=1)
    again = Federation(job, engine, folder)
    again.resume()
    assert "in a row" in again.run().rounds[-1].rejected["2"]


def test_a_lie_about_a_norm_does_not_end_a_run():
    job, engine = lied_to(rounds=1, server={"min_clients": 1, "attempts": 2})
    with pytest.warns(UserWarning, match="tried again"):
        record = Federation(job, engine).run().rounds[0]
    assert record.num_clients > 0 and list(record.rejected) == ["2"]
