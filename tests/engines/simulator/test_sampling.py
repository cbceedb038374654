"""Client sampling in real runs: same bits for any number of workers, resumed or not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedplt.engines.simulator.engine import SimulatorEngine
from fedplt.federation.choose_clients import ClientSampler, most_numbers
from fedplt.server import Broadcast
from fedplt.server.aggregation import Aggregator
from tests.support.jobs import blob_job, small_model
from tests.support.runs import final_state, run_job, same, without_time

pytestmark = pytest.mark.slow

SAMPLERS = [
    {"name": "uniform", "num_clients": 3},
    {"name": "uniform", "num_clients": 3, "estimator": "unbiased"},
    {"name": "ocs", "budget": 2.0},
    {"name": "fedplt-ocs", "budget": 1.0},
    {"name": "fedplt-ocs", "budget": 1.0, "objective": "aggregate"},
    {"name": "fedplt-ocs", "budget": 1.0, "norms": "last"},
    {"name": "fedplt-ocs", "budget": 1.0, "norms": "last", "estimator": "renormalized"},
    {"name": "paper-ocs", "budget": 1.0},
    {"name": "approximate-ocs", "budget": 1.0},
]


@pytest.mark.parametrize("sampling", SAMPLERS, ids=lambda s: "-".join(map(str, s.values())))
def test_same_bits_with_two_workers_and_resumed(sampling, tmp_path):
    def job(workers):
        torch.manual_seed(0)
        settings = {
            "checkpoint_every": 2,
            "engine": {"workers": workers},
            "diagnostics": {"enabled": True, "window": 3},
        }
        return blob_job(rounds=6, model=small_model(), sampling=sampling, **settings)

    class Stop(Exception): ...

    def stop(record):
        if record.round == 5:
            raise Stop

    whole_history, whole = final_state(job(1))
    with pytest.raises(Stop):
        run_job(job(2), tmp_path / "run", on_round=stop)
    history, state = final_state(job(2), tmp_path / "run", resume=True)
    assert same(whole, state)
    assert without_time(history) == without_time(whole_history)


def test_sampling_learns():
    sampling = {"name": "fedplt-ocs", "budget": 1.2}
    history = run_job(blob_job(rounds=30, sampling=sampling))
    assert history.scores[-1] > 0.9
    full = run_job(blob_job(rounds=1))
    uploaded = history.rounds[-1].total.bytes_up / 30
    assert uploaded < 0.8 * full.rounds[0].cost.bytes_up


def test_the_weighted_norm_is_of_what_will_be_added():
    job = blob_job(sampling={"name": "ocs", "budget": 5.0, "objective": "aggregate"})
    engine = SimulatorEngine(job)
    try:
        assignments = {client: job.plan.assignment(client) for client in range(5)}
        weights = ClientSampler(job).block_weights(job.plan.in_round(0), range(5))
        state = torch.zeros(job.layers.state_size)
        results = engine.train(0, Broadcast(state), assignments, weights)
        updates = dict(engine.collect(range(5)))
        for result in results:
            alone = Aggregator(job.layers)
            for client in range(5):
                alone.expect(job.plan.assignment(client), int(job.num_examples[client]))
            alone.add(updates[result.client], job.plan.assignment(result.client))
            added = torch.zeros(job.layers.state_size)
            alone.apply(added)
            assert result.weighted_norm * result.num_examples == pytest.approx(
                float(added.norm()), rel=1e-5
            )
    finally:
        engine.close()


def test_memory_for_last_known_norms_follows_the_budget():
    sampling = {"name": "fedplt-ocs", "budget": 2.0, "norms": "last"}
    many = blob_job([0.5] * 300, data={"min_examples": 1}, sampling=sampling)
    whole = int(many.plan.update_sizes.sum())
    room, size = most_numbers(many), int(many.plan.update_sizes.max())
    assert room < whole / 3
    p = 2.0 / many.plan.achieved_ratios.sum()
    number = 300 * p
    assert room > size * (number + 6 * math.sqrt(number))
    few = blob_job(sampling=sampling)
    assert most_numbers(few) == np.sum(few.plan.update_sizes)
