"""Ratios from the devices that nodes say they have: planned once, or when nodes come and go."""

from __future__ import annotations

import warnings

import pytest
from safetensors.torch import load_file

from fedplt.api import run
from fedplt.configuration import AnnouncedDevice, dump_config, override, parse_config
from fedplt.errors import ConfigError, RunError, UntrainedWarning
from fedplt.federation import RunFolder
from fedplt.federation.start import job_of
from fedplt.fleet import DeviceProfile
from fedplt_flower.server.server_app import run_on
from tests.support.flower_nodes import MemoryWire, memory_engine
from tests.support.runs import run_job, same, without_time

pytestmark = pytest.mark.slow

# The fastest sets the time of a round.
SPEEDS = {0: 2e9, 1: 1.5e9, 2: 1.2e9}
DEVICES = {k: DeviceProfile(f"n{k}", speed, 1e9, 1e9) for k, speed in SPEEDS.items()}
VALUES = {
    "rounds": 4,
    "checkpoint_every": 1,
    "data": {"name": "tests.support.tiny:data", "alpha": 0.5},
    "model": {"name": "tests.support.tiny:model"},
    "clients": {"num_clients": 3},
    "training": {"batch_size": 16, "learning_rate": 0.1},
    "engine": {"name": "flower", "check": False, "round_timeout_seconds": 20.0},
}
ON_CHANGE = {"devices": "nodes", "replan": "on-change", "min_ratio": 0.05}
GROUPS = {"num_clients": 3, "groups": [{"share": 1.0, "ratio": 0.5}]}


def settings(**changes):
    return parse_config({**VALUES, **changes})


class ComingAndGoing:
    """Nodes of which some are away in some rounds: ``away[r]`` after r rounds."""

    def __init__(self, states, away, done=0):
        self.wires, self.away = [], away
        self.make, self.done = memory_engine(states, self.wires, devices=DEVICES), done

    def engine(self, job, stop):
        made = self.make(job, stop)
        self.set(self.done)
        return made

    def on_round(self, record):
        self.set(record.round)

    def set(self, done):
        self.wires[-1].away = {100 + k for k in self.away.get(done, ())}


def go(config, states, away, out=None, **options):
    nodes = ComingAndGoing(states, away)
    return run_job(job_of(config), out, engine=nodes.engine, on_round=nodes.on_round, **options)


def ratios(record):
    return record.replanned["ratios"]


@pytest.mark.parametrize("method", ["fedplt", "heterofl"])
def test_a_fleet_is_planned_anew_when_nodes_leave_and_come_back(method, tmp_path):
    config = settings(fleet=ON_CHANGE, method={"name": method})
    first, second, third, fourth = go(config, tmp_path, {1: [0], 2: [0]}).rounds
    assert ratios(first)["0"] == 1 > ratios(first)["1"] > ratios(first)["2"]
    assert ratios(second)["1"] == 1 > ratios(second)["2"] > ratios(first)["2"]
    assert (second.dropped, second.num_clients) == ([0], 2)
    assert third.replanned is None and third.dropped == [0]
    assert fourth.replanned == first.replanned and fourth.dropped == []


def test_a_resumed_run_goes_on_with_the_plan_in_force(tmp_path):
    away = {1: [0], 2: [0], 3: [2]}
    config, whole, parts = settings(fleet=ON_CHANGE), tmp_path / "whole", tmp_path / "parts"
    history = go(config, tmp_path / "states", away, whole)

    class Stop(Exception):
        """As if the server had been killed."""

    nodes = ComingAndGoing(tmp_path / "states", away)

    def stop_after_two(record):
        nodes.on_round(record)
        if record.round == 2:
            raise Stop

    with pytest.raises(Stop):
        run_job(job_of(config), parts, engine=nodes.engine, on_round=stop_after_two)
    nodes = ComingAndGoing(tmp_path / "states", away, done=2)
    options = {"engine": nodes.engine, "on_round": nodes.on_round}
    again = run_job(job_of(config), parts, resume=True, **options)
    models = [load_file(folder / "model.safetensors") for folder in (whole, parts)]
    assert same(*models)
    assert without_time(history) == without_time(again)
    last = RunFolder.open(parts).plan().ratios
    assert last[:2].tolist() == [ratios(again.rounds[-1])[k] for k in "01"]


def test_a_round_that_does_not_count_leaves_no_plan_behind(tmp_path):
    """A node leaves while too few are there; when the round counts, all are back."""
    server = {"min_clients": 3, "attempts": 2}
    config = settings(
        fleet=ON_CHANGE, server=server, engine={**VALUES["engine"], "round_timeout_seconds": 0.5}
    )
    nodes = ComingAndGoing(tmp_path, {1: [2]})

    def engine(job, stop):
        made = nodes.engine(job, stop)
        train = made.train

        def training(*args, **options):
            found = train(*args, **options)
            nodes.wires[-1].away = set()  # back for the second attempt
            return found

        made.train = training
        return made

    with pytest.warns(UserWarning, match="2 of at least 3 updates came"):
        history = run_job(job_of(config), engine=engine, on_round=nodes.on_round)
    assert [record.replanned is not None for record in history.rounds] == [True, *[False] * 3]


def test_a_fleet_that_is_planned_once_is_the_same_in_the_simulator(tmp_path):
    config = settings(fleet={"devices": "nodes"})
    wire = MemoryWire(job_of(announced(config)), tmp_path, devices=DEVICES)
    path, out = tmp_path / "run.toml", tmp_path / "run"
    path.write_text(dump_config(config))
    run_on(wire, {"config": str(path), "out": str(out)})
    found = RunFolder.open(out)
    assert found.config().fleet == announced(config).fleet
    assert found.plan().ratios[0] == 1 > found.plan().ratios[1] > found.plan().ratios[2]
    run(override(found.config(), ["engine.name=simulator"]), tmp_path / "simulated")
    models = [load_file(folder / "model.safetensors") for folder in (out, tmp_path / "simulated")]
    assert same(*models)
    wire = MemoryWire(job_of(found.config()), tmp_path)  # nobody is asked for devices again
    path.write_text(path.read_text().replace("rounds = 4", "rounds = 5"))
    run_on(wire, {"config": str(path), "out": str(out)})
    assert len(found.rounds()) == 5


def announced(config):
    """The configuration with what the nodes say about their devices."""
    said = [AnnouncedDevice.of(DEVICES[client]) for client in sorted(DEVICES)]
    return config.model_copy(update={"fleet": config.fleet.model_copy(update={"announced": said})})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "set profile in its node.toml"),
        ({"flops_per_second": 1e30}, "flops_per_second"),
        ({"up_bits_per_second": float("nan")}, "up_bits_per_second"),
        ({"up_bits_per_second": "fast"}, "up_bits_per_second"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_node_whose_device_is_not_known_cannot_join(said, words, tmp_path):
    def tamper(node, action, header, arrays):
        if (node, action) != (102, "query.hello"):
            return None
        return {**header, "profile": said and {**header["profile"], **said}}, {}

    config = settings(fleet=ON_CHANGE, rounds=1)
    make = memory_engine(tmp_path, devices=DEVICES, tamper=tamper)
    with pytest.warns(UserWarning, match=f"node 102 cannot join: .*{words}"):
        history = run_job(job_of(config), engine=make)
    assert list(ratios(history.rounds[0])) == ["0", "1"]
    config = settings(fleet={"devices": "nodes"})
    path = tmp_path / "run.toml"
    engine = {**VALUES["engine"], "round_timeout_seconds": 0.1}
    path.write_text(dump_config(settings(fleet={"devices": "nodes"}, engine=engine)))
    wire = MemoryWire(job_of(announced(config)), tmp_path, tamper, DEVICES)
    with (
        pytest.warns(UserWarning, match=words),
        pytest.raises(RunError, match=r"clients \[2\] did not join .* what their devices can do"),
    ):
        run_on(wire, {"config": str(path), "out": str(tmp_path / "run")})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fleet": ON_CHANGE, "engine": {}}, "fleet.replan: .*but the simulator has"),
        ({"fleet": {**ON_CHANGE, "devices": "devices.csv"}}, "does not use replan"),
        ({"fleet": {**ON_CHANGE, "dropout": 0.5}}, "does not use dropout"),
        ({"fleet": {"devices": "nodes"}}, "a deployment learns it when its nodes join"),
        ({"fleet": ON_CHANGE, "clients": GROUPS}, "clients.groups sets them too"),
    ],
)
def test_settings_without_a_meaning_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        job_of(settings(**changes))


def test_flowers_simulation_does_not_replan():
    with pytest.raises(RunError, match="simulated nodes neither join nor leave"):
        run_job(job_of(settings(fleet=ON_CHANGE)))


def test_what_nobody_trains_while_nodes_are_away_is_said(tmp_path):
    config = settings(fleet={**ON_CHANGE, "deadline_seconds": 2e-5}, rounds=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = go(config, tmp_path, {1: [0, 1]}).rounds
    assert sum(ratios(first).values()) >= 1 > sum(ratios(second).values())
    said = [str(each.message) for each in caught if each.category is UntrainedWarning]
    assert said and all("planned for the 1 clients that are there" in text for text in said), said
