"""Every order that a node gets passes its owner's gate, and is done under its clock."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from dataclasses import asdict
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from fedplt.client import TrainingConfig
from fedplt.client.local_training import batches
from fedplt.data import TensorSamples
from fedplt.errors import RunError
from fedplt.planning import DEFAULT_RECIPE
from fedplt_flower.messages import (
    EVALUATE,
    HELLO,
    TRAIN,
    UPLOAD,
    EvaluateHeader,
    TrainHeader,
    UploadHeader,
)
from fedplt_flower.node import owner_limits
from fedplt_flower.node.client_app import client_app
from fedplt_flower.node.daily_bytes import AWAY_SECONDS, JUMP_SECONDS, Moment, count_bytes
from fedplt_flower.node.node_config import load_node, node_job
from fedplt_flower.node.owner_limits import AdmittedOrder, Limits
from fedplt_flower.records import from_records, to_records
from tests.support import flower_identity  # noqa: F401 (messages need one)

pytestmark = pytest.mark.slow

NODE = """
name = "n2"
client = 1
num_clients = 3

[data]
name = "tests.support.tiny:data"
alpha = 0.5
seed = 7

[model]
name = "tests.support.tiny:model"
"""
NOON = datetime(2026, 1, 31, 12, 0).astimezone()
BOOT = Moment(NOON, "a", 1000.0)


class Node:
    """A node of a deployment with these limits, asked by messages as Flower carries them."""

    def __init__(self, folder, limits=""):
        (folder / "node.toml").write_text(NODE)
        (folder / "limits.toml").write_text(limits)
        self.path = folder / "node.toml"
        self.job = node_job(load_node(self.path))
        config = {"fedplt-node": str(self.path)}
        self.context = Context(1, 101, config, RecordDict(), {})

    def ask(self, action, header, arrays=()):
        message = Message(to_records(header, dict(arrays)), 101, action, ttl=60.0)
        message.metadata._message_id = "1"
        reply = client_app()(message, self.context)
        return from_records(reply.content)

    def order(self, action, **training):
        """A header and arrays of a right order of this kind."""
        plan, size = self.job.plan.fingerprint, self.job.layers.state_size
        state = {"state": np.zeros(size, dtype=np.float32)}
        if action == HELLO:
            return {}, {}
        if action == UPLOAD:
            return UploadHeader(client=1, round=0, plan=plan).model_dump(), {}
        if action == EVALUATE:
            asked = EvaluateHeader(
                client=1, round=0, part="validation", local=[], local_state_round=-1
            )
            return asked.model_dump(), state
        settings = TrainingConfig(**{"batch_size": 16, **training})
        header = TrainHeader(
            client=1, round=0, seed=0, plan=plan, local=[], recipe=asdict(DEFAULT_RECIPE),
            assignment=self.job.plan.assignment(0).to_message(), training=settings,
            learning_rate=0.1, local_state_round=-1, oldest_state_round=-1, upload=False,
            check=False,
        )  # fmt: skip
        return header.model_dump(), state


NEVER = f'hours = ["{(datetime.now() + timedelta(hours=11)):%H:%M}-'
NEVER += f'{(datetime.now() + timedelta(hours=12)):%H:%M}"]'


@pytest.mark.parametrize("action", [HELLO, TRAIN, UPLOAD, EVALUATE])
@pytest.mark.parametrize(
    ("limits", "key"),
    [
        (NEVER, "hours"),
        ("mains_power_only = true", "mains_power_only"),
        ("bytes_per_round = 1", "bytes_per_round"),
        ("bytes_per_day = 1", "bytes_per_day"),
        ("seconds_per_round = 1e-9", "seconds_per_round"),
    ],
)
def test_every_kind_of_order_passes_the_gate(tmp_path, monkeypatch, action, limits, key):
    defaults = {**AdmittedOrder.__init__.__kwdefaults__, "mains": lambda: False}
    monkeypatch.setattr(AdmittedOrder.__init__, "__kwdefaults__", defaults)
    allowed = Node(tmp_path)
    if action == UPLOAD:
        assert "refused" not in allowed.ask(TRAIN, *allowed.order(TRAIN))[0]
    free, _ = allowed.ask(action, *allowed.order(action))
    assert "refused" not in free
    refused, arrays = Node(tmp_path, limits).ask(action, *allowed.order(action))
    assert f"limits.toml: {key}" in refused["refused"]
    assert not arrays


@pytest.mark.parametrize("action", ["train.local", "train.other", "evaluate.kept", "system"])
def test_bytes_of_orders_that_a_node_does_not_know_are_counted(tmp_path, action):
    node = Node(tmp_path, 'bytes_per_day = "1 MB"')
    assert "does not know" in node.ask(action, {}, node.order(EVALUATE)[1])[0]["refused"]
    assert json.loads((tmp_path / "state" / "bytes.json").read_text())["bytes"] > 100
    node = Node(tmp_path, "bytes_per_day = 1")
    assert "bytes_per_day" in node.ask(action, {})[0]["refused"]


@pytest.mark.parametrize("kind", ["value", "pipe", "link"])
def test_a_node_whose_limits_cannot_be_read_does_nothing(tmp_path, kind):
    node, path = Node(tmp_path), tmp_path / "limits.toml"
    path.unlink()
    if kind == "value":
        path.write_text("max_ratio = 2.0")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "moved.toml")
    for action in (HELLO, TRAIN, EVALUATE):
        said = node.ask(action, *node.order(action))[0]["refused"]
        assert str(path) in said and ("max_ratio" if kind == "value" else "cannot be read") in said


def test_training_without_end_is_refused_before_it_begins(tmp_path):
    node = Node(tmp_path)
    for training in ({"local_steps": 10**18}, {"local_epochs": 10**18, "batch_size": 1}):
        refused = node.ask(TRAIN, *node.order(TRAIN, **training))[0]["refused"]
        assert "max_steps" in refused


def test_training_is_stopped_by_the_nodes_clock(tmp_path):
    node = Node(tmp_path, "seconds_per_round = 0.3")
    started = time.monotonic()
    answer, arrays = node.ask(TRAIN, *node.order(TRAIN, local_steps=1_000_000))
    assert "seconds_per_round" in answer["refused"]
    assert not arrays
    assert time.monotonic() - started < 30
    after, _ = node.ask(TRAIN, *node.order(TRAIN, local_steps=1))
    assert "refused" not in after


@pytest.mark.parametrize("action", [TRAIN, EVALUATE])
def test_one_step_that_takes_too_long_is_stopped(tmp_path, monkeypatch, action):
    """Such as a full batch of all data, or data that is slow to read."""
    node = Node(tmp_path, "seconds_per_round = 0.2")

    def slowly(samples, indices):
        ends = time.monotonic() + 30
        while time.monotonic() < ends:
            time.sleep(0.01)

    monkeypatch.setattr(TensorSamples, "batch", slowly)
    handler, began = signal.getsignal(signal.SIGALRM), time.monotonic()
    said = node.ask(action, *node.order(action, local_steps=1, local_epochs=None))[0]
    assert "seconds_per_round" in said["refused"] and time.monotonic() - began < 10
    assert signal.getsignal(signal.SIGALRM) is handler


def test_work_that_began_in_time_is_stopped_when_the_hours_end(monkeypatch):
    monkeypatch.setattr(owner_limits, "CHECK_SECONDS", 0.0)
    times = iter([NOON, NOON, NOON + timedelta(hours=1)])
    limits = Limits(hours=["11:00-13:00"])
    work = AdmittedOrder(limits, node="n", now=lambda: Moment(next(times), "", 0.0))
    assert work.on_step is not None
    work.on_step()
    with pytest.raises(RunError, match="13:00"):
        work.on_step()


def test_a_node_without_time_limits_pays_nothing_per_step():
    assert AdmittedOrder(Limits(max_ratio=0.5, bytes_per_round=10)).on_step is None


@pytest.mark.parametrize("steps", [None, 7])
@pytest.mark.parametrize("size", ["full", 1, 16, 100])
def test_the_number_of_steps_is_that_of_the_batches(steps, size):
    epochs = 3 if steps is None else None
    settings = TrainingConfig(local_steps=steps, local_epochs=epochs, batch_size=size)
    made = batches(50, settings, np.random.default_rng(0))
    assert settings.num_steps(50) == len(list(made))


def test_an_update_that_waits_counts_when_it_is_sent(tmp_path):
    ledger = tmp_path / "bytes.json"
    limits = Limits(bytes_per_day=1000)

    def work():
        return AdmittedOrder(limits, node="n", bytes_down=100, ledger=ledger, now=lambda: BOOT)

    work().admit_upload(800, now=False)
    assert count_bytes(ledger, 0, BOOT) == 100
    with pytest.raises(RunError, match="bytes_per_day"):
        work().admit_upload(900, now=False)  # trained for nothing otherwise
    work().admit_upload(600)
    assert count_bytes(ledger, 0, BOOT) == 900


def later(**passed) -> Moment:
    change = timedelta(**passed)
    return Moment(NOON + change, "a", 1000.0 + change.total_seconds())


def test_the_ledger_counts_by_day(tmp_path):
    path = tmp_path / "state" / "bytes.json"
    assert count_bytes(path, 100, BOOT) == 100
    assert count_bytes(path, 20, later(hours=11)) == 120
    assert count_bytes(path, 7, later(hours=13)) == 7
    assert count_bytes(path, 1, later(days=200)) == 1  # it ran all the time


@pytest.mark.parametrize(
    ("moment", "word"),
    [
        (Moment(NOON + timedelta(days=31), "a", 1001.0), "moved"),
        (Moment(NOON + timedelta(hours=13), "a", 1001.0), "moved"),
        (Moment(NOON - timedelta(hours=2), "a", 1001.0), "behind"),
        (Moment(NOON - timedelta(days=1), "b", 5.0), "behind"),
        (Moment(NOON + timedelta(seconds=AWAY_SECONDS + 1), "b", 5.0), "days old"),
        (Moment(NOON + timedelta(seconds=AWAY_SECONDS + 1), "", 5.0), "days old"),
    ],
)
def test_a_clock_that_was_set_leaves_no_bytes_until_the_owner_resets(tmp_path, moment, word):
    path = tmp_path / "bytes.json"
    count_bytes(path, 900, BOOT)
    before = path.read_text()
    for _ in range(2):
        with pytest.raises(RunError, match=word) as caught:
            count_bytes(path, 1, moment)
        assert f"rm '{path}'" in str(caught.value)
        assert path.read_text() == before
    path.unlink()
    assert count_bytes(path, 1, moment) == 1


def test_a_clock_31_days_ahead_and_back_gives_no_second_allowance(tmp_path):
    """Found by a check: today's bytes were forgotten, and 0 of them used."""
    path = tmp_path / "bytes.json"
    count_bytes(path, 900, BOOT)
    for day in range(31, 70):
        ahead = Moment(NOON + timedelta(days=day), "a", 1001.0)
        with pytest.raises(RunError):
            count_bytes(path, 1, ahead)
    assert count_bytes(path, 1, later(seconds=5)) == 901


def test_small_corrections_and_time_zones_are_no_jumps(tmp_path):
    path = tmp_path / "bytes.json"
    count_bytes(path, 900, BOOT)
    small = timedelta(seconds=JUMP_SECONDS - 60)
    assert count_bytes(path, 1, Moment(NOON - small, "a", 1001.0)) == 901
    path.unlink()
    count_bytes(path, 900, BOOT)
    west = (NOON + timedelta(minutes=1)).astimezone(timezone(timedelta(hours=-14)))
    assert west.date() < NOON.date()
    assert count_bytes(path, 1, Moment(west, "a", 1060.0)) == 901


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "\0", '{"day": "2026-01-31"}', "huge", "negative", "day", '{"2026-01-31": 5}'],
)
def test_a_damaged_ledger_leaves_no_bytes_until_the_owner_resets(tmp_path, text):
    path = tmp_path / "bytes.json"
    count_bytes(path, 900, BOOT)
    values = json.loads(path.read_text())
    changes = {"huge": {"bytes": 1e400}, "negative": {"bytes": -1}, "day": {"day": "someday"}}
    path.write_text(json.dumps(values | changes[text]) if text in changes else text)
    for moment in (BOOT, later(days=1), later(days=400)):
        with pytest.raises(RunError, match="damaged"):
            count_bytes(path, 1, moment)
    with pytest.raises(RunError, match="node n: no bytes are left"):
        AdmittedOrder(Limits(bytes_per_day=10**12), node="n", ledger=path, now=lambda: BOOT)
    AdmittedOrder(Limits(), node="n", ledger=path, now=lambda: BOOT)  # no daily limit: not needed


@pytest.mark.parametrize("name", ["bytes.json", ".bytes.json.lock"])
def test_a_pipe_in_the_ledgers_place_makes_no_order_wait(tmp_path, name):
    path = tmp_path / "bytes.json"
    os.mkfifo(tmp_path / name)
    with pytest.raises(RunError, match=r"damaged|not an ordinary file"):
        count_bytes(path, 1, BOOT)


def test_a_ledger_that_stays_locked_makes_no_order_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("fedplt_flower.node.daily_bytes.LOCK_SECONDS", 0.05)
    path = tmp_path / "bytes.json"
    count_bytes(path, 1, BOOT)
    with (tmp_path / ".bytes.json.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="cannot be locked"):
            count_bytes(path, 1, BOOT)
    assert count_bytes(path, 1, BOOT) == 2


def test_the_real_clock_goes_on(tmp_path):
    path = tmp_path / "bytes.json"
    first = count_bytes(path, 3, Moment.now())
    assert (first, count_bytes(path, 4, Moment.now())) == (3, 7)
