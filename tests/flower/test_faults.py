"""What goes wrong in real deployments, done for real on loopback."""

from __future__ import annotations

import os
import signal
import time

import pytest
from safetensors.torch import load_file

from fedplt.api import run
from fedplt.configuration.config_file import load_config, override
from tests.support.counting_proxy import CountingProxy
from tests.support.deployments import (
    NAMES,
    answers,
    free_ports,
    make_deployment,
    nodes_online,
    parts,
    records,
    start_federation,
    start_node,
    start_server,
)
from tests.support.runs import same

pytestmark = [pytest.mark.flower, pytest.mark.timeout(2400)]

ROUND = 400
"""Seconds within which a round ends, also on a machine that does much else."""
MANY = 200
"""Rounds of runs that are stopped when the test has seen what it waits for."""

CONFIG = """
name = "tiny"
rounds = 4
seed = 3

[data]
name = "tests.support.tiny:slow_data"
alpha = 0.5

[model]
name = "tests.support.tiny:model"

[engine]
round_timeout_seconds = 300.0

[server]
min_clients = 2
"""
TWO_PHASES = """
name = "tiny"
rounds = 3
seed = 3

[data]
name = "tests.support.killed_server:data"
alpha = 0.5

[model]
name = "tests.support.tiny:model"

[sampling]
name = "fedplt-ocs"
budget = 1.0
objective = "aggregate"
"""


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    """A folder, its port and its nodes' ports; clients take some seconds for a round."""
    monkeypatch.setenv("FEDPLT_TEST_PAUSE", "0.5")
    port, *node_ports = free_ports(4)
    return make_deployment(tmp_path, config=CONFIG, port=port), port, node_ports


def begin(started, folder):
    """Start the run, and do not wait for its end."""
    started.may_end.add("run")
    started.start("run", folder / "server" / "start-run.sh")


def kill(started, name):
    part = started.running.pop(name)
    os.killpg(part.pid, signal.SIGKILL)
    part.wait(20)


def model_of(folder):
    return folder / "server" / "run" / "model.safetensors"


def simulated(folder, tmp_path):
    """The final tensors of the same run in the simulator."""
    os.environ["FEDPLT_TEST_PAUSE"] = "0"
    config = override(load_config(folder / "run.toml"), ["engine.name=simulator"])
    run(config, tmp_path / "simulated")
    return load_file(tmp_path / "simulated" / "model.safetensors")


def ends(started, folder, seconds=1200):
    started.wait_for("the run's end", model_of(folder).exists, seconds)


def test_a_node_killed_in_mid_round_is_left_out_and_comes_back(deployment, tmp_path):
    folder, port, node_ports = deployment
    set_rounds(folder, MANY)
    with parts(tmp_path / "logs") as started:
        start_federation(started, folder, port, node_ports)
        begin(started, folder)
        started.wait_for("a round", lambda: left_out(folder), ROUND)
        kill(started, "n3")
        started.wait_for("a round without it", lambda: {"2"} in left_out(folder), ROUND)
        # Flower refuses the node until the lease of the killed one has ended.
        started.may_end.add("n3")
        deadline = time.monotonic() + ROUND
        while nodes_online(started, folder) < 3:
            assert time.monotonic() < deadline, started.said
            start_node(started, folder, "n3", node_ports[2])
            time.sleep(15)
        started.wait_for("a round with it", lambda: left_out(folder)[-1] == set(), ROUND)
    first, *_, last = (record["cost"] for record in records(folder))
    assert first["bytes_up"] == last["bytes_up"]  # the assignments of the first round


def test_a_node_that_joins_late_takes_part_from_then_on(deployment, tmp_path):
    folder, port, node_ports = deployment
    join_late(
        *(tmp_path, folder, port, node_ports),
        without=lambda: {"2"} in left_out(folder),
        with_it=lambda: left_out(folder)[-1] == set(),
    )


def test_a_fleet_is_planned_anew_when_a_node_joins_late(tmp_path):
    port, *node_ports = free_ports(4)
    fleet = '[fleet]\ndevices = "nodes"\nreplan = "on-change"\n'
    nodes = "name\n" + "\n".join(NAMES)
    folder = make_deployment(tmp_path, nodes, CONFIG + fleet, port=port)
    for name, speed in zip(NAMES, (1.2, 1.5, 2.0), strict=True):
        device = f'[[device]]\nname = "{name}"\nspeed = "{speed} GFLOP/s"\n'
        bandwidth = 'down = "1 Gbit/s"\nup = "1 Gbit/s"\n'
        (folder / "nodes" / name / "profile.toml").write_text(device + bandwidth)

    def planned():
        """The ratios by client, of every round that was planned anew."""
        return [r["replanned"]["ratios"] for r in records(folder) if "replanned" in r]

    join_late(
        *(tmp_path, folder, port, node_ports),
        without=planned,
        with_it=lambda: len(planned()) == 2,
    )
    first, second = planned()
    assert first["1"] == 1 > first["0"] and "2" not in first
    assert second["2"] == 1 > second["1"] > second["0"]


def join_late(tmp_path, folder, port, node_ports, *, without, with_it):
    """The third node starts when a round has counted without it."""
    set_rounds(folder, MANY)
    with parts(tmp_path / "logs") as started:
        start_server(started, folder, port)
        for name, node_port in zip(NAMES[:2], node_ports, strict=False):
            start_node(started, folder, name, node_port)
        started.wait_for("two nodes", lambda: nodes_online(started, folder) == 2, ROUND)
        begin(started, folder)
        started.wait_for("a round without it", without, ROUND)
        start_node(started, folder, "n3", node_ports[2])
        started.wait_for("a round with it", with_it, ROUND)


def set_rounds(folder, number):
    text = (folder / "run.toml").read_text()
    (folder / "run.toml").write_text(text.replace("rounds = 4", f"rounds = {number}"))


def left_out(folder):
    """The clients that were left out, round by round."""
    return [set(record.get("rejected", {})) for record in records(folder)]


def test_a_killed_superlink_is_restarted_and_the_run_goes_on(deployment, tmp_path):
    folder, port, node_ports = deployment
    with parts(tmp_path / "logs") as started:
        start_federation(started, folder, port, node_ports)
        begin(started, folder)
        started.wait_for("a round", lambda: left_out(folder), ROUND)
        kill(started, "superlink")
        started.start("superlink", folder / "server" / "superlink.sh")
        started.wait_for("SuperLink", lambda: answers(port), 180)
        ends(started, folder)
        assert started.wait_for_end("run", 180) == 0, started.said
    assert not [record["rejected"] for record in records(folder) if record.get("rejected")]
    assert same(load_file(model_of(folder)), simulated(folder, tmp_path))


def test_a_server_app_killed_between_two_phases_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    """Updates that wait on the nodes belong to the old run: the round is trained again."""
    killed = tmp_path / "killed"
    monkeypatch.setenv("FEDPLT_TEST_KILLED", str(killed))
    port, *node_ports = free_ports(4)
    folder = make_deployment(tmp_path, config=TWO_PHASES, port=port)
    with parts(tmp_path / "logs") as started:
        start_federation(started, folder, port, node_ports)
        begin(started, folder)
        started.wait_for("the server app's death", killed.exists, 3 * ROUND)
        assert [record["round"] for record in records(folder)] == [1]
        done = started.run(folder / "server" / "start-run.sh", timeout=1200)
        assert model_of(folder).exists(), done.stdout + done.stderr + started.said
    assert same(load_file(model_of(folder)), simulated(folder, tmp_path))


def test_a_cut_of_30_seconds_and_a_slow_link_only_take_time(deployment, tmp_path):
    folder, port, node_ports = deployment
    proxy = CountingProxy(port)
    proxy.bytes_per_second = 20_000
    with parts(tmp_path / "logs") as started:
        start_server(started, folder, port)
        for name, node_port in zip(NAMES[:2], node_ports, strict=False):
            start_node(started, folder, name, node_port)
        address = f"127.0.0.1:{proxy.port}"
        start_node(started, folder, "n3", node_ports[2], FEDPLT_SUPERLINK=address)
        started.wait_for("nodes online", lambda: nodes_online(started, folder) == 3, ROUND)
        begin(started, folder)
        started.wait_for("a round", lambda: left_out(folder), ROUND)
        proxy.cut()
        started.wait_for("30 seconds", _after(30), 60)
        proxy.mend()
        ends(started, folder)
    proxy.close()
    assert [record["round"] for record in records(folder)] == [1, 2, 3, 4]


def _after(seconds):
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def test_the_server_app_ends_with_the_servers_other_processes(deployment, tmp_path):
    """It waits for the SuperLink for ever otherwise, and keeps the run's lock."""
    folder, port, node_ports = deployment
    with parts(tmp_path / "logs") as started:
        start_federation(started, folder, port, node_ports)
        begin(started, folder)
        started.wait_for("a round", lambda: left_out(folder), ROUND)
        lock = folder / "server" / "run" / ".lock"
        server_app = int(lock.read_text())
        kill(started, "superlink")
        superexec = started.running.pop("superexec")
        superexec.kill()  # this process alone, not its group
        superexec.wait(20)
        started.wait_for("the server app's end", lambda: not _lives(server_app), 60)
        start_server(started, folder, port)
        started.wait_for("nodes online", lambda: nodes_online(started, folder) == 3, ROUND)
        started.wait_for_end("run", 300)
        assert started.ended["run"].returncode == 1, started.said
        done = started.run(folder / "server" / "start-run.sh", timeout=1200)
        assert done.returncode == 0, done.stderr + started.said
    assert same(load_file(model_of(folder)), simulated(folder, tmp_path))


def _lives(identity):
    try:
        os.kill(identity, 0)
    except ProcessLookupError:
        return False
    return True
