"""Devices in a run: planned ratios, simulated time, dropouts, a deadline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedplt import ConfigError, RunError
from fedplt.federation.availability import Availability
from fedplt.federation.folder import RunFolder
from fedplt.federation.loop import Federation
from fedplt.fleet import ExactWorkload, plan_fleet, read_fleet, round_time
from tests.federation.jobs import blob_data, blob_job
from tests.federation.test_loop import FakeEngine, run

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


def planned_job(devices, **settings):
    """A job whose ratios come from the devices."""
    from fedplt.federation.job import make_job
    from fedplt.federation.load_config import parse_config
    from tests.conftest import small_model

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
    return make_job(parse_config(values), small_model(), blob_data())


def test_ratios_come_from_the_planner(devices):
    job = planned_job(devices)
    assert job.plan.ratios[0] == 1
    assert job.plan.ratios[1] == job.plan.ratios[2] < 1
    assert job.devices.plan.devices[0].feasible
    profiles = read_fleet(Path(devices)).devices
    workload = ExactWorkload(job.layers, local_steps=4, batch_size=16)  # 60 examples each
    expected = [entry.ratio for entry in plan_fleet(profiles, workload).devices]
    assert job.plan.ratios[[0, 1, 3]].tolist() == expected


def test_simulated_time_is_the_slowest_clients(devices):
    sizes = ((1, 1.0), (2, 0.5), (2, 0.2))
    groups = [{"num_clients": number, "ratio": ratio} for number, ratio in sizes]
    job = blob_job(
        rounds=2,
        clients={"groups": groups},
        fleet={"devices": devices, "ratios": "groups"},
    )
    seconds = Availability(job).seconds
    workload = ExactWorkload(job.layers, 1, job.examples_seen(0))
    assert seconds[0] == pytest.approx(
        round_time(job.devices.profiles[0], workload.work(1.0)).total, rel=1e-9
    )
    history, _ = run(job)
    assert [record.cost.simulated_seconds for record in history.rounds] == [seconds.max()] * 2
    assert history.rounds[-1].total.simulated_seconds == pytest.approx(2 * seconds.max())


def test_dropouts_are_seeded_and_recorded(devices):
    job = planned_job(devices, rounds=20, fleet={"dropout": 0.4})
    history, _ = run(job)
    again, _ = run(planned_job(devices, rounds=20, fleet={"dropout": 0.4}))
    dropped = [record.dropped for record in history.rounds]
    assert dropped == [record.dropped for record in again.rounds]
    assert 0.2 < sum(map(len, dropped)) / 100 < 0.6
    for record in history.rounds:
        assert record.num_clients == 5 - len(record.dropped)
    other, _ = run(planned_job(devices, rounds=20, seed=1, fleet={"dropout": 0.4}))
    assert dropped != [record.dropped for record in other.rounds]


def test_a_round_without_anybody_changes_nothing(devices):
    job = planned_job(devices, rounds=3, fleet={"dropout": 0.999})
    history, change = run(job)
    assert [record.num_clients for record in history.rounds] == [0, 0, 0]
    assert not change.any()
    assert history.rounds[0].cost.simulated_seconds == 0
    assert "train_loss" not in history.rounds[0].to_json()


def test_late_clients_are_left_out(devices):
    job = planned_job(devices)
    seconds = Availability(job).seconds
    deadline = float(sorted(seconds)[2])
    late = [client for client in range(5) if seconds[client] > deadline]
    assert late
    job = planned_job(devices, rounds=1, fleet={"round_deadline": deadline})
    history, _ = run(job)
    record = history.rounds[0]
    assert record.late == late
    assert record.cost.simulated_seconds <= deadline
    assert record.to_json()["late"] == late
    with pytest.raises(ConfigError, match="nobody finishes within 1e-05 s"):
        run(planned_job(devices, fleet={"round_deadline": 1e-5}))


def test_freezing_reaches_the_clients(slow_computers):
    job = planned_job(slow_computers, fleet={**TIGHT, "target_seconds": 0.13, "may_freeze": True})
    assert job.devices.plan.devices[0].frozen_layers == 1
    assert (job.plan.counts[:, 0] == 0).all()
    assert (job.plan.counts[:, 1] > 0).all()


def test_fewer_steps_reach_the_clients(slow_computers):
    job = planned_job(
        slow_computers, fleet={**TIGHT, "target_seconds": 0.07, "may_cut_steps": True}
    )
    steps = job.devices.plan.devices[0].local_steps
    assert 0 < steps < 4
    assert job.training_of(3).local_steps == steps
    assert job.examples_seen(3) == steps * 16
    assert Availability(job).seconds.max() <= 0.07


TIGHT = {"target": "deadline", "min_ratio": 0.1}


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
        ({"fleet": {"target": "deadline"}}, "target_seconds"),
        ({"fleet": {"target": "percentile"}}, "percentile"),
        ({"fleet": {"dropout": 1.0}}, "fleet.dropout"),
        ({"fleet": {"dropuot": 0.1}}, "Did you mean 'dropout'"),
        ({"fleet": {"ratios": "groups"}}, "3 devices and 1 clients.groups"),
        (
            {"clients": {"num_clients": 5, "groups": [{"share": 1.0, "ratio": 0.5}]}},
            "clients.groups does so too",
        ),
    ],
)
def test_mistakes(devices, settings, expected):
    with pytest.raises(ConfigError, match=expected):
        planned_job(devices, **settings)


def test_a_resumed_run_refuses_other_devices(devices, tmp_path):
    job = planned_job(devices, rounds=1)
    folder = RunFolder.create(tmp_path / "run", job)
    Federation(job, FakeEngine(job), folder).run()
    folder.load_checkpoint(planned_job(devices, rounds=1))
    Path(devices).write_text(DEVICES.replace("50,10,20", "50,10,21"))
    with pytest.raises(RunError, match=r"devices are not what|belongs to plan"):
        folder.load_checkpoint(planned_job(devices, rounds=1))


def test_same_bits_for_any_number_of_workers(slow_computers):
    from fedplt.simulator.run import run_job

    fleet = {**TIGHT, "target_seconds": 0.07, "may_cut_steps": True, "dropout": 0.3}
    losses = []
    for workers in (1, 2):
        torch.manual_seed(0)
        job = planned_job(slow_computers, engine={"workers": workers}, fleet=fleet)
        losses.append([record.loss for record in run_job(job).rounds])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) > 1
