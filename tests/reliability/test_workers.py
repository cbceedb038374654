"""Workers that die, stop or ignore signals: nothing hangs, and no bit changes."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.reliability import worker_deaths
from torch import nn

from fedplt import RunError
from fedplt.engines.simulator.engine import SimulatorEngine
from fedplt.engines.simulator.interprocess import Connection, encode
from fedplt.federation.engine import Interrupted
from fedplt.federation.loop import Federation
from tests.support.jobs import blob_job
from tests.support.processes import Forked
from tests.support.runs import final_state, run_job, same

pytestmark = pytest.mark.slow

FORK = {"workers": 2, "start_method": "fork"}


@pytest.mark.parametrize(
    ("deaths", "engine", "settings"),
    [
        ({4: "SIGKILL", 9: "SIGSEGV"}, FORK, {"method": {"name": "fedbn"}}),
        ({2: "exit", 7: "exit"}, FORK, {"sampling": {"name": "fedplt-ocs", "budget": 1.0}}),
        ({3: "child holds the connection"}, FORK, {}),
        ({5: "connection closed"}, FORK, {"method": {"name": "fedrolex", "static_norm": True}}),
        ({3: "SIGKILL"}, {"workers": 1, "start_method": "spawn"}, {"method": {"name": "fedbn"}}),
    ],
    ids=["local state", "two phases", "held open", "closed", "spawned"],
)
def test_a_dead_worker_changes_no_bit(deaths, engine, settings):
    found = worker_deaths.attack(deaths, engine, settings)
    assert found.deaths == len(deaths)
    assert len(found.warnings) == len(deaths)
    assert found.same


class DeadlyClient(nn.Sequential):
    """Ends every worker that trains a batch with such inputs."""

    def forward(self, inputs):
        if self.training and os.getpid() != self.parent and (inputs[:, 0] > 100).any():
            os._exit(7)
        return super().forward(inputs)


def test_three_deaths_end_the_run_and_name_the_client():
    model = DeadlyClient(nn.Linear(6, 3))
    model.parent = os.getpid()
    job = blob_job(model=model, engine=FORK, rounds=1)
    job.samples.inputs[job.examples(3)] += 1000.0
    with (
        pytest.warns(UserWarning, match=r"died \(exit code 7\) at client 3, round 1") as said,
        pytest.raises(RunError, match=r"client 3, round 1: 3 workers died at it \(exit code 7\)"),
    ):
        run_job(job)
    assert len(said) == 2


def test_a_worker_killed_between_rounds_is_replaced():
    _, expected = final_state(blob_job(rounds=2))
    job = blob_job(rounds=2, engine=FORK)
    engine = SimulatorEngine(job)
    try:
        federation = Federation(job, engine)
        federation.round()
        for process in engine._pool.processes:
            os.kill(process.pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match=r"died \(killed by signal 9\)"):
            federation.round()
        assert same(expected, job.model.state_dict())
    finally:
        engine.close()


def deaf_loss(outputs, targets):
    """As of a model that ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return nn.functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTERM])
def test_workers_that_do_not_end_are_ended(number):
    asked = []
    job = blob_job(rounds=1, engine={"workers": 4, "start_method": "fork"})
    object.__setattr__(job.training, "loss", deaf_loss)
    engine = SimulatorEngine(job, lambda: bool(asked))
    processes = engine._pool.processes
    federation = Federation(job, engine)
    federation.round()
    for process in processes:
        os.kill(process.pid, number)
    began = time.monotonic()
    asked.append("stop")
    if number == signal.SIGSTOP:  # they answer nothing any more
        with pytest.raises(Interrupted):
            federation.round()
    engine.close()
    engine.close()
    assert time.monotonic() - began < 10
    assert not any(process.is_alive() for process in processes)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_a_busy_worker_ends_with_its_parent():
    def start_workers():
        def sleep(outputs, targets):
            print(os.getpid(), flush=True)
            time.sleep(60)

        job = blob_job(engine={"workers": 1, "start_method": "fork"})
        object.__setattr__(job.training, "loss", sleep)
        run_job(job)

    with Forked(start_workers, stderr=sys.stderr) as parent:
        worker = Path("/proc") / parent.stdout.readline().strip()
        assert worker.exists()
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while worker.exists() and ") Z" not in (worker / "stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_worker_that_is_stopped_in_its_first_moment_is_not_waited_for(monkeypatch):
    """A spawned one, before it reads what it is to do, which is more than a pipe holds."""
    start, started = multiprocessing.util.spawnv_passfds, []

    def stopped(path, arguments, descriptors):
        pid = start(path, arguments, descriptors)
        if "--multiprocessing-fork" in arguments:  # not the tracker of resources
            os.kill(pid, signal.SIGSTOP)
            started.append(pid)
        return pid

    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", stopped)
    engine = {"workers": 1, "start_method": "spawn", "timeout_seconds": 1}
    job = blob_job(rounds=1, engine=engine)
    job.model.ballast = np.zeros(10**6)
    began = time.monotonic()
    with pytest.raises(RunError, match="has not answered for 1 s"):
        run_job(job)
    assert time.monotonic() - began < 10
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


class GaveUp(Exception): ...


def give_up():
    raise GaveUp


def test_no_message_is_waited_for_without_end():
    one, two = socket.socketpair()
    connection, other = Connection(one), Connection(two)
    two.send(encode("x" * 1000)[:500])  # a part of a message, from an end that stays open
    assert connection.receive() == []
    with pytest.raises(GaveUp):
        connection.wait(give_up)
    with pytest.raises(GaveUp):
        connection.send(bytes(10_000_000), give_up)  # nobody reads
    other.close()
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        connection.send(b"more", give_up)
    with pytest.raises(EOFError):
        connection.receive()
    connection.close()


def test_both_ends_may_send_much_at_once():
    with contextlib.ExitStack() as stack:
        one, two = (Connection(stack.enter_context(end)) for end in socket.socketpair())
        with ThreadPoolExecutor(2) as pool:
            # An end that has sent all goes on reading, as servers and workers do: what the other
            # one still sends may be more than the socket holds.
            futures = [
                pool.submit(send_and_wait, one, "x" * 3_000_000),
                pool.submit(send_and_wait, two, torch.arange(100_000).numpy()),
            ]
            numbers, text = (future.result() for future in futures)
    assert len(text) == 3_000_000
    assert numbers.sum() == 100_000 * 99_999 // 2


def send_and_wait(connection, message):
    deadline = time.monotonic() + 60

    def waiting():
        if time.monotonic() > deadline:
            raise GaveUp

    connection.send(encode(message), waiting)
    return connection.wait(waiting)
