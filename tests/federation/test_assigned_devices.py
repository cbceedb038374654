"""Devices in a run: planned ratios, simulated time, dropouts, a deadline."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedplt import ClientUpdate, ConfigError, RunError
from fedplt.client.trainer import ClientTrainer, TrainOrder
from fedplt.client.update import update_norm
from fedplt.configuration.device_files import read_fleet
from fedplt.federation.assigned_devices import nominal_workload
from fedplt.federation.availability import Availability
from fedplt.federation.choose_clients import ClientSampler
from fedplt.federation.loop import Federation
from fedplt.federation.round_costs import RoundCosts
from fedplt.federation.run_folder.records import RoundRecord
from fedplt.fleet import ExactWorkload, Work, plan_fleet, round_time
from fedplt.kernels.flat_state import read_state, take
from fedplt.planning import download_bytes, exact_flops, upload_bytes
from fedplt.sampling import sampling_variance
from tests.support.engines import FakeEngine, run_fake
from tests.support.jobs import blob_data, blob_job, run_folder, small_model

DEVICES = """name,count,mflops,kbps_down,kbps_up,latency_ms
fast,1,10,100,100,0
middle,2,2,100,20,10
slow,2,0.5,50,10,20
"""


@pytest.fixture
def devices(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text(DEVICES)
    return str(path)


def planned_job(devices, model=None, **settings):
    """A job whose ratios come from the devices."""
    from fedplt.configuration.config_file import parse_config
    from fedplt.federation.job import make_job

    fleet = {"devices": devices, **settings.pop("fleet", {})}
    values = {
        "rounds": 4,
        "clients": {"num_clients": 5},
        "data": {"name": "blobs", "split": "iid"},
        "training": {"learning_rate": 0.1, "batch_size": 16},
        "engine": {"workers": 1},
        "fleet": fleet,
        **settings,
    }
    return make_job(parse_config(values), model or small_model(), blob_data())


def predicted(job, round=0):
    return Availability(job, RoundCosts(job)).predicted(round)


def test_ratios_come_from_the_planner(devices):
    job = planned_job(devices)
    assert job.plan.ratios[0] == 1
    assert job.plan.ratios[1] == job.plan.ratios[2] < 1
    assert job.devices.plan.devices[0].feasible
    profiles = read_fleet(Path(devices)).devices
    workload = ExactWorkload(job.layers, local_steps=4, batch_size=16, num_examples=60)
    expected = [entry.ratio for entry in plan_fleet(profiles, workload).devices]
    assert job.plan.ratios[[0, 1, 3]].tolist() == expected


def test_small_messages_leave_more_time_for_training(devices):
    """The planner counts the bytes that the run sends, and so do the records of its rounds."""
    small = {"up": "int8", "down": "int4"}
    plain, job = planned_job(devices), planned_job(devices, messages=small)
    assert (job.plan.ratios[1:] > plain.plan.ratios[1:]).any()
    assert (job.plan.ratios >= plain.plan.ratios).all()
    work, part = nominal_workload(job.config, job.layers, 60).work(1.0), job.plan.assignment(0)
    assert work.bytes_up == upload_bytes(part, "int8")
    assert work.bytes_down == download_bytes(part, "int4")
    deadline = max(plan.planned.total for plan in job.devices.plan.devices)
    assert predicted(job).max() <= deadline * (1 + 1e-9)


def test_simulated_time_is_the_slowest_clients(devices):
    job = blob_job(
        rounds=2,
        clients={"groups": GROUPS},
        fleet={"devices": devices, "ratios": "groups"},
    )
    seconds = predicted(job)
    workload = ExactWorkload(job.layers, 1, job.examples_seen(0))
    assert seconds[0] == pytest.approx(
        round_time(job.devices.profiles[0], workload.work(1.0)).total, rel=1e-9
    )
    history, _ = run_fake(job)
    assert [record.cost.simulated_seconds for record in history.rounds] == [seconds.max()] * 2
    assert history.rounds[-1].total.simulated_seconds == pytest.approx(2 * seconds.max())


def by_hand(job, client, round, uploads):
    """The time of a client's round from what it is really sent, trains and sends."""
    part, examples = job.plan.assignment(client, round), job.examples_seen(client)
    flops, up = exact_flops(part), upload_bytes(part)
    work = Work(
        examples * flops.forward,
        examples * (flops.input_gradients + flops.weight_gradients),
        download_bytes(part),
        up if uploads else 0,
    )
    return round_time(job.devices.profiles[client], work).total


GROUPS = [{"num_clients": n, "ratio": r} for n, r in ((1, 1.0), (2, 0.5), (2, 0.2))]


def test_feddrop_is_timed_by_what_each_round_drew(devices):
    job = blob_job(
        rounds=4, method={"name": "feddrop"}, clients={"groups": GROUPS},
        fleet={"devices": devices, "ratios": "groups"},
    )  # fmt: skip

    class Drawn(FakeEngine):
        def train(self, round, sent, assignments, block_weights=None, *, upload=True):
            self.round = round
            return super().train(round, sent, assignments)

        def collect(self, clients):
            for client in clients:
                size = job.plan.assignment(client, self.round).update_size
                number = len(job.examples(client))
                yield client, ClientUpdate(np.ones(size, dtype=np.float32), number, 1.0)

    history = Federation(job, Drawn(job)).run()
    times = [[by_hand(job, k, round, True) for k in range(5)] for round in range(4)]
    assert len({max(each) for each in times}) > 1
    for record, each in zip(history.rounds, times, strict=True):
        assert record.cost.simulated_seconds == pytest.approx(max(each), rel=1e-9)
    assert predicted(job, 3).tolist() == pytest.approx(times[3], rel=1e-9)


def test_only_the_chosen_take_the_time_of_an_upload(devices):
    job = blob_job(
        rounds=12, clients={"groups": GROUPS}, fleet={"devices": devices, "ratios": "groups"},
        sampling={"name": "ocs", "budget": 0.6},
    )  # fmt: skip
    history, _ = run_fake(job)
    chosen = [record.sampling["chosen"] for record in history.rounds]
    assert [] in chosen
    assert max(map(len, chosen)) > 0
    for record in history.rounds:
        times = [by_hand(job, k, 0, k in record.sampling["chosen"]) for k in range(5)]
        assert record.cost.simulated_seconds == pytest.approx(max(times), rel=1e-9)


AWAY = [
    {"name": "ocs", "budget": 2.0},
    {"name": "fedplt-ocs", "budget": 1.0, "norms": "last"},
    {"name": "uniform", "num_clients": 3},
]


@pytest.mark.parametrize("sampling", AWAY, ids=lambda sampling: sampling["name"])
def test_records_of_sampling_know_who_was_away(devices, sampling):
    job = blob_job(
        rounds=30, clients={"groups": GROUPS}, sampling=sampling,
        fleet={"devices": devices, "ratios": "groups", "dropout": 0.6},
    )  # fmt: skip
    history, _ = run_fake(job)
    notes = set()
    for number, record in enumerate(history.rounds):
        said, there = record.sampling, Availability(job, RoundCosts(job)).attend(number).present
        assert len(said["chosen"]) == said["num_chosen"] == record.num_clients
        assert set(said["chosen"]) <= set(there)
        notes.add(said.get("note", "").partition(":")[0])
        if sampling["name"] == "uniform":
            continue
        fresh = sampling["name"] == "ocs"
        assert said["num_trained"] == len(there if fresh else said["chosen"])
        p = np.array(said["probabilities"])
        assert not p[[k for k in range(5) if k not in there]].any()
        costs = np.ones(5) if fresh else job.plan.achieved_ratios
        assert said["cost"] == pytest.approx(costs[said["chosen"]].sum())
        assert said["expected_cost"] == pytest.approx(costs @ p, rel=1e-3)
        if fresh:
            assert said["expected_cost"] == pytest.approx(min(2.0, len(there)), rel=1e-3)
            norms = np.isin(np.arange(5), there).astype(float)
            if there:
                equal = sampling_variance(min(1.0, 2.0 / len(there)), norms, job.num_examples)
                assert said["uniform_variance"] == pytest.approx(equal)
    assert "all who were to take part were away" in notes


def test_the_aggregates_objective_divides_by_those_who_are_there(devices):
    """A client's norm is as if those who are away were no clients at all."""
    job = blob_job(
        clients={"groups": GROUPS}, fleet={"devices": devices, "ratios": "groups", "dropout": 0.5},
        sampling={"name": "ocs", "budget": 2.0, "objective": "aggregate"},
    )  # fmt: skip
    availability = Availability(job, RoundCosts(job))
    round = next(r for r in range(99) if 0 < len(availability.attend(r).present) < 4)
    there = availability.attend(round).present
    weights = ClientSampler(job).block_weights(job.plan.in_round(round), there)
    by_hand = torch.zeros(job.layers.state_size)
    for k in there:
        for start, stop in job.plan.assignment(k, round).uploaded.segments:
            by_hand[start:stop] += int(job.num_examples[k])
    assert torch.equal(weights, by_hand)

    client = there[0]
    part = job.plan.assignment(client, round)
    state = read_state(job.model, job.layers)
    trainer = ClientTrainer(job.model, job.layers, state, job.plan.local_index)
    order = TrainOrder(
        client=client, round=round, seed=0, assignment=part, training=job.training,
        learning_rate=0.1, block_weights=take(weights, part.uploaded),
    )  # fmt: skip
    update = torch.empty(part.update_size)
    result = trainer.train(order, job.samples, job.examples(client), update)
    assert result.weighted_norm == update_norm(update / take(by_hand, part.uploaded), part)
    assert result.norm == update_norm(update, part) > 0
    assert torch.equal(trainer.state, state)  # put back for the next client


def test_dropouts_are_seeded_and_recorded(devices):
    job = planned_job(devices, rounds=20, fleet={"dropout": 0.4})
    history, _ = run_fake(job)
    again, _ = run_fake(planned_job(devices, rounds=20, fleet={"dropout": 0.4}))
    dropped = [record.dropped for record in history.rounds]
    assert dropped == [record.dropped for record in again.rounds]
    assert 0.2 < sum(map(len, dropped)) / 100 < 0.6
    for record in history.rounds:
        assert record.num_clients == 5 - len(record.dropped)
    other, _ = run_fake(planned_job(devices, rounds=20, seed=1, fleet={"dropout": 0.4}))
    assert dropped != [record.dropped for record in other.rounds]


def test_a_round_without_anybody_changes_nothing(devices):
    job = planned_job(devices, rounds=3, fleet={"dropout": 0.999})
    history, change = run_fake(job)
    assert [record.num_clients for record in history.rounds] == [0, 0, 0]
    assert not change.any()
    assert history.rounds[0].cost.simulated_seconds == 0
    assert "train_loss" not in history.rounds[0].to_json()


def test_late_clients_are_left_out(devices):
    job = planned_job(devices)
    seconds = predicted(job)
    deadline = float(sorted(seconds)[2])
    late = [client for client in range(5) if seconds[client] > deadline]
    assert late
    job = planned_job(devices, rounds=1, fleet={"late_after_seconds": deadline})
    history, _ = run_fake(job)
    record = history.rounds[0]
    assert record.late == late
    assert record.cost.simulated_seconds <= deadline
    assert record.to_json()["late"] == late
    names = {str(client): job.devices.profiles[client].name for client in late}
    assert record.devices == names
    assert RoundRecord.from_json(record.to_json()).devices == names
    with pytest.raises(ConfigError, match=r"nobody finishes within 1e-05 s; .* client \d \(fast\)"):
        run_fake(planned_job(devices, fleet={"late_after_seconds": 1e-5}))


def test_freezing_reaches_the_clients(slow_computers):
    fleet = {"min_ratio": 0.2, "deadline_seconds": 0.1105, "may_freeze": True}
    job = planned_job(slow_computers, fleet=fleet)
    assert job.devices.plan.devices[0].frozen_layers == 1
    assert (job.plan.counts[:, 0] == 0).all()
    assert (job.plan.counts[:, 1] > 0).all()


def test_fewer_steps_reach_the_clients(slow_computers):
    job = planned_job(
        slow_computers, fleet={**TIGHT, "deadline_seconds": 0.07, "may_cut_steps": True}
    )
    steps = job.devices.plan.devices[0].local_steps
    assert 0 < steps < 4
    assert job.training_of(3).settings.local_steps == steps
    assert job.examples_seen(3) == steps * 16
    assert predicted(job).max() <= 0.07


def test_fewer_steps_never_mean_more_examples(slow_computers):
    job = planned_job(
        slow_computers,
        data={"name": "blobs", "alpha": 0.3, "min_examples": 4},
        fleet={**TIGHT, "deadline_seconds": 0.07, "may_cut_steps": True},
    )
    steps = job.devices.plan.devices[0].local_steps
    numbers = job.num_examples.tolist()
    assert min(numbers) < steps * 16 < max(numbers)
    seen = [job.examples_seen(client) for client in range(5)]
    assert seen == [min(number, steps * 16) for number in numbers]


def test_the_fleet_is_planned_once(devices, monkeypatch):
    from fedplt.federation import assigned_devices as fleet

    calls = []
    monkeypatch.setattr(
        fleet, "plan_fleet", lambda *given, **more: calls.append(1) or plan_fleet(*given, **more)
    )
    planned_job(devices)
    assert len(calls) == 1


TIGHT = {"min_ratio": 0.1}


@pytest.fixture
def slow_computers(tmp_path):
    path = tmp_path / "slow.csv"
    path.write_text("name,count,mflops,kbps_down,kbps_up\nslow,5,0.1,1000,1000\n")
    return str(path)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"clients": {"num_clients": 4}}, "has 5 devices .* clients.num_clients is 4"),
        ({"fleet": {"devices": "none.csv"}}, "fleet.devices: none.csv cannot be read"),
        ({"fleet": {"deadline_seconds": 1.0, "percentile": 50.0}}, "deadline_seconds.*percentile"),
        ({"fleet": {"old_seconds": 1.0}}, "Did you mean 'deadline_seconds'"),
        ({"fleet": {"ratios": "groups", "min_ratio": 0.1}}, "'groups' does not use min_ratio"),
        ({"sampling": {"name": "ocs", "budget": 1.0, "floor": 0.3}}, "'fresh' does not use floor"),
        ({"server": {"learning_rate": 0.5}}, "'none' does not use learning_rate"),
        ({"server": {"optimizer": "momentum", "beta2": 0.5}}, "'momentum' does not use beta2"),
        ({"diagnostics": {"window": 3}}, "enabled = false does not use window"),
        ({"fleet": {"dropout": 1.0}}, "fleet.dropout"),
        ({"fleet": {"dropuot": 0.1}}, "Did you mean 'dropout'"),
        ({"fleet": {"ratios": "groups"}}, "3 devices and 1 clients.groups"),
        (
            {"clients": {"num_clients": 5, "groups": [{"share": 1.0, "ratio": 0.5}]}},
            "clients.groups sets them too",
        ),
    ],
)
def test_mistakes(devices, settings, expected):
    with pytest.raises(ConfigError, match=expected):
        planned_job(devices, **settings)


def test_defaults_may_be_written_down(devices):
    """As a run's folder does."""
    from fedplt.configuration.config_file import dump_config, parse_config

    config = parse_config({"fleet": {"devices": devices, "ratios": "groups"}})
    assert parse_config(tomllib.loads(dump_config(config))) == config
    with pytest.raises(ConfigError, match="devices: this key is missing"):
        parse_config({"fleet": {"dropout": 0.1}})


def test_a_resumed_run_refuses_other_devices(devices, tmp_path):
    job = planned_job(devices, rounds=1)
    folder = run_folder(tmp_path / "run", job)
    Federation(job, FakeEngine(job), folder).run()
    folder.load_checkpoint(planned_job(devices, rounds=1))
    Path(devices).write_text(DEVICES.replace("50,10,20", "50,10,21"))
    with pytest.raises(RunError, match=r"devices are not what|belongs to plan"):
        folder.load_checkpoint(planned_job(devices, rounds=1))


@pytest.mark.slow
def test_same_bits_for_any_number_of_workers(slow_computers):
    from tests.support.runs import run_job

    fleet = {**TIGHT, "deadline_seconds": 0.07, "may_cut_steps": True, "dropout": 0.3}
    losses = []
    for workers in (1, 2):
        torch.manual_seed(0)
        job = planned_job(slow_computers, engine={"workers": workers}, fleet=fleet)
        losses.append([record.loss for record in run_job(job).rounds])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) > 1


def test_a_device_with_little_memory_trains_in_micro_batches(tmp_path):
    """And its rounds are those of whole batches, up to rounding."""
    path = tmp_path / "devices.csv"
    head, *rows = DEVICES.splitlines()

    def job_with(memory):
        limits = (memory, 1e9, 1e9)
        lines = [f"{row},{each:.0f}" for row, each in zip(rows, limits, strict=True)]
        path.write_text("\n".join([f"{head},memory_bytes", *lines]))
        known = {"deadline_seconds": 1e4, "min_ratio": 1.0}
        training = {"learning_rate": 0.1, "batch_size": "full", "local_epochs": 3}
        first, *_, last = small_model().children()
        sizes = (first.in_features, 300, last.out_features)
        torch.manual_seed(0)
        wide = nn.Sequential(nn.Linear(*sizes[:2]), nn.Tanh(), nn.Linear(*sizes[1:]))
        return planned_job(str(path), wide, fleet=known, training=training)

    whole = job_with(1e9)
    assert not any(whole.devices.micro_batches)
    full = whole.devices.plan.devices[0].memory_bytes
    split = job_with(0.9 * full)
    (entry, *_) = split.devices.plan.devices
    assert entry.feasible and entry.memory_bytes <= 0.9 * full
    assert split.devices.micro_batches == (entry.micro_batch, None, None, None, None)
    assert split.training_of(0).settings.micro_batch == entry.micro_batch < 60
    assert split.training_of(1) == split.training
    first, second = (run_fake(each)[0].rounds[-1] for each in (whole, split))
    assert first.score == pytest.approx(second.score, abs=1e-3)


def test_micro_batches_of_a_model_with_batch_statistics_are_refused():
    from fedplt.configuration.config_file import parse_config
    from fedplt.federation.job import make_job
    from tests.support.tiny import normed_model

    values = {"training": {"micro_batch": 4}, "clients": {"num_clients": 5}}
    values["data"] = {"name": "blobs"}
    with pytest.raises(
        ConfigError, match="normalizes by the statistics of the whole batch"
    ) as caught:
        make_job(parse_config(values), normed_model(), blob_data())
    assert caught.value.key == "training.micro_batch"
