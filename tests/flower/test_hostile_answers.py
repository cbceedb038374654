"""Every kind of answer, changed in every part: one node neither ends nor bends a run.

Honest answers of all nodes are recorded once. Each case replays them with one node's answer
changed, through the real reader, the real round loop and both engines.
"""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from fedplt.client import METRICS
from fedplt.federation import Federation, RoundRecord
from fedplt_flower.server.engine import FlowerEngine
from fedplt_flower.server.wire import GridWire
from tests.support.app_nodes import MemoryGrid, app_of, small_strategy, started
from tests.support.flower_nodes import MemoryWire
from tests.support.hostile_answers import error_message, message_of, npz, odd_messages
from tests.support.image_jobs import image_job
from tests.support.jobs import blob_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BAD = 2
OCS = {"name": "fedplt-ocs", "budget": 4.0, "objective": "aggregate"}
NODES = {"engine": {"name": "flower", "round_timeout_seconds": 5.0}}
FUZZ = settings(
    max_examples=100,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def on_nodes(metric="accuracy", **options):
    job = blob_job(rounds=1, evaluation={"on": "nodes"}, **NODES, **options)
    return replace(job, metric=METRICS[metric])


JOBS = {
    "all upload": on_nodes,
    "two phases": lambda: on_nodes(sampling=OCS),
    "encoded": lambda: on_nodes(messages={"up": "int8", "down": "int2"}),
    "by label": lambda: image_job("fedbn", "resnet8", rounds=1, engine=NODES["engine"]),
}


class Replay:
    """Flower's grid: gives recorded replies; those of the bad node may be others."""

    def __init__(self, recorded):
        self.recorded, self.changed, self.orders = recorded, {}, []

    def get_node_ids(self):
        return sorted({node for node, _ in self.recorded})

    def push_messages(self, messages):
        first = len(self.orders)
        self.orders += messages
        return [str(number) for number in range(first, len(self.orders))]

    def pull_messages(self, ids):
        return [self._reply(name) for name in ids]

    def _reply(self, name):
        about = self.orders[int(name)].metadata
        key = about.dst_node_id, about.message_type
        reply = self.changed.get(key) or message_of(RecordDict(dict(self.recorded[key].items())))
        reply.metadata.__dict__["_reply_to_message_id"] = name
        return reply


class Case:
    """A run of one round, ``play(wire)``, that is repeated with other answers."""

    def __init__(self, recorded, play):
        self.recorded, self.play = recorded, play
        self.actions = sorted(action for node, action in recorded if node == 100 + BAD)
        self.honest = self.run({})
        self.failed = {a: self.run({(100 + BAD, a): error_message("")}) for a in self.actions}
        """The runs in which the bad node says in words that it cannot do an order."""

    def run(self, changed):
        grid = Replay(self.recorded)
        grid.changed = changed
        return self.play(grid)


class RecordingWire(MemoryWire):
    def _tampered(self, order, reply, message):
        self.recorded[order.node, order.action] = reply.content
        return reply


@cache
def node_case(name):
    """The clients of a deployment."""
    job, recorded = JOBS[name](), {}
    initial = {key: value.clone() for key, value in job.model.state_dict().items()}

    def play(grid):
        job.model.load_state_dict(initial)
        wire = GridWire(grid) if isinstance(grid, Replay) else grid
        federation = Federation(job, FlowerEngine(job, wire))
        record = federation.round()
        return SimpleNamespace(record=record, state=federation.state.clone().numpy())

    with TemporaryDirectory() as folder:
        wire = RecordingWire(job, Path(folder), lambda *_: None)
        wire.recorded = recorded
        play(wire)
    return Case(recorded, play)


class RecordingGrid(MemoryGrid):
    def _push(self, message):
        name, about = super()._push(message), message.metadata
        self.recorded[about.dst_node_id, about.message_type] = self.replies[name].content
        return name


@cache
def app_case(name):
    """The clients are apps of a strategy of Flower."""
    job, recorded = blob_job(rounds=1, training={"momentum": 0.9}), {}
    options = {"sampling": OCS} if "two" in name else {}

    def play(grid):
        strategy = small_strategy(min_clients=1, **options)
        result = started(job, strategy, grid, timeout=5.0)
        arrays = result.arrays.to_torch_state_dict()
        return SimpleNamespace(
            record=strategy.history.rounds[0],
            state=np.concatenate([array.numpy().ravel() for array in arrays.values()]),
            metrics=[
                *result.train_metrics_clientapp[1].values(),
                *result.evaluate_metrics_clientapp[1].values(),
            ],
        )

    grid = RecordingGrid(app_of(job), 5)
    grid.recorded = recorded
    play(grid)
    return Case(recorded, play)


CASES = {f"nodes, {name}": (node_case, name) for name in JOBS}
CASES |= {f"apps, {name}": (app_case, name) for name in ("all upload", "two phases")}


@pytest.mark.parametrize("name", CASES)
def test_one_node_neither_ends_nor_bends_a_run(name):
    make, key = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = make(key)
        assert not case.honest.record.rejected and not case.honest.record.not_evaluated

        @seed(23)
        @FUZZ
        @given(st.data())
        def fuzz(data):
            action = data.draw(st.sampled_from(case.actions))
            message = data.draw(odd_messages(case.recorded[100 + BAD, action]))
            check(case, case.run({(100 + BAD, action): message}), action)

        fuzz()


def header(**changes):
    def change(content):
        old = json.loads(content["fedplt"]["header"])
        text = json.dumps({**old, **changes})
        return RecordDict({**dict(content.items()), "fedplt": ConfigRecord({"header": text})})

    return change


def text(value):
    return lambda _: RecordDict({"fedplt": ConfigRecord({"header": value})})


def archive(content):
    data = npz(np.zeros(3, dtype=np.float32))
    array = Array(dtype="float32", shape=(len(data) // 4,), stype="numpy.ndarray", data=data)
    return RecordDict({"fedplt": content["fedplt"], "numbers": ArrayRecord({"update": array})})


def array(change):
    def changed(content):
        update = Array(change(content["numbers"]["update"].numpy()))
        return RecordDict({"fedplt": content["fedplt"], "numbers": ArrayRecord({"update": update})})

    return changed


def metrics(**values):
    return lambda _: RecordDict({"metrics": MetricRecord({"num-examples": 10, **values})})


TRAIN, EVALUATE = "nodes, all upload", "evaluate"
ATTACKS = {
    "archive": (TRAIN, "train", archive, "rejected", "'update' cannot be read"),
    "archive at hello": (TRAIN, "query.hello", archive, "rejected", "not connected"),
    "archive at evaluation": (TRAIN, EVALUATE, archive, "not_evaluated", "cannot be read"),
    "long header": (
        TRAIN, "train", text("[" + "1," * 2**20 + "1]"), "rejected", "2000000",
    ),
    "control codes": (
        TRAIN, "train", header(plan="\x1b[2J\nround 1: 99 %"), "rejected",
        "\\x1b[2J\\nround 1",
    ),
    "refused in control codes": (
        TRAIN, "train", text('{"refused": "\\u001b[2J\\nforged"}'), "rejected",
        "\\x1b[2J\\nforged",
    ),
    "huge label counts": (
        "nodes, by label", EVALUATE, header(label_counts=[10**30]), "not_evaluated",
        "OverflowError",
    ),
    "no label counts": (
        "nodes, by label", EVALUATE, header(label_counts=None, label_scores=None), "not_evaluated",
        "integer labels",
    ),
    "labels of others": (
        "nodes, by label", EVALUATE, header(label_counts=[10**9], label_scores=[10.0**9]),
        "not_evaluated", "do not add up",
    ),
    "one byte less": ("nodes, encoded", "train", array(lambda u: u[1:]), "rejected", "bytes"),
    "numbers, not bytes": (
        "nodes, encoded", "train", array(lambda u: u.astype(np.float32)), "rejected", "float32",
    ),
    "bytes, not numbers": (TRAIN, "train", array(lambda u: u.view(np.uint8)), "rejected", "uint8"),
    "a scale that is no number": (
        "nodes, encoded", "train", array(lambda u: np.append(np.full(4, 255, np.uint8), u[4:])),
        "rejected", "not finite",
    ),
    "too many right": (TRAIN, EVALUATE, header(sums=[1e300]), "not_evaluated", "accuracy"),
    "negative": (TRAIN, EVALUATE, header(sums=[-1.0]), "not_evaluated", "accuracy"),
    "no loss": (TRAIN, EVALUATE, header(loss=math.nan), "not_evaluated", "its loss is nan"),
    "a loss without a mean": (TRAIN, EVALUATE, header(loss=1e308), "not_evaluated", "1e+308"),
    "negative norm": (
        "nodes, two phases", "train", header(norm=-1.0, weighted_norm=-1.0), "rejected",
        "norm of its update is -1",
    ),
    "another weighted norm": (
        "nodes, two phases", "train", header(weighted_norm=1e15), "rejected", "1e+15",
    ),
    "infinite norm": (
        "nodes, two phases", "train", header(weighted_norm=1e300), "rejected", "1e+300",
    ),
    "metrics that are a number": (
        "apps, all upload", "evaluate", text('{"metrics": 5}'), "not_evaluated", "metrics",
    ),
    "a text as accuracy": (
        "apps, all upload", "evaluate", text('{"metrics": {"num-examples": 3, "eval_acc": "abc"}}'),
        "not_evaluated", "metrics.eval_acc",
    ),
    "accuracy of no kind": (
        "apps, all upload", "evaluate", text('{"metrics": {"num-examples": 3, "eval_acc": null}}'),
        "not_evaluated", "metrics.eval_acc",
    ),
    "accuracy above 1": (
        "apps, all upload", "evaluate", metrics(eval_acc=1e300), "not_evaluated", "0 to 1",
    ),
    "infinite loss": (
        "apps, all upload", "evaluate", metrics(eval_acc=0.5, eval_loss=math.inf), "not_evaluated",
        "its loss is inf",
    ),
    "negative norm of an app": (
        "apps, two phases", "train", header(norm=-1.0, weighted_norm=-1.0), "rejected",
        "norm of its update is -1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.filterwarnings("ignore")
def test_attacks_that_ended_or_bent_runs(name):
    which, action, change, field, words = ATTACKS[name]
    make, key = CASES[which]
    case = make(key)
    message = message_of(change(case.recorded[100 + BAD, action]))
    found = case.run({(100 + BAD, action): message})
    assert words in getattr(found.record, field)[str(BAD)]
    check(case, found, action)


@pytest.mark.filterwarnings("ignore")
def test_metrics_of_apps_that_have_no_mean_are_left_out():
    case = app_case("all upload")
    honest = json.loads(case.recorded[100 + BAD, "train"]["fedplt"]["header"])["metrics"]
    for value in (math.inf, -math.inf, math.nan, 1.7e308):
        change = header(metrics={**honest, "train_loss": value})
        message = message_of(change(case.recorded[100 + BAD, "train"]))
        found = case.run({(100 + BAD, "train"): message})
        assert not found.record.rejected and np.isfinite(found.metrics).all()


def check(case, found, action):
    record, honest = found.record, case.honest.record
    bad = str(BAD)
    assert set(record.rejected) <= {bad} and set(record.not_evaluated) <= {bad}
    for why in [*record.rejected.values(), *record.not_evaluated.values()]:
        assert why and why.isprintable() and len(why) <= 2000
    # What is recorded can be written and read, and is within its limits.
    assert RoundRecord.from_json(json.loads(json.dumps(record.to_json(), allow_nan=False)))
    assert record.score is None or 0 <= record.score <= 1
    assert math.isfinite(record.loss) and math.isfinite(record.train_loss)
    others = {k: v for k, v in record.client_scores.items() if k.isdecimal() and k != bad}
    assert others == {k: v for k, v in honest.client_scores.items() if k in others}
    assert np.isfinite(found.state).all()
    if "norm" in record.rejected.get(bad, ""):
        pass  # sampling by norm: what it claimed changed the chances of all, until it uploaded
    elif bad in record.rejected:
        assert np.array_equal(found.state, case.failed[action].state)
    elif "evaluate" in action:
        assert np.array_equal(found.state, case.honest.state)
    assert all(math.isnan(value) or abs(value) <= 1e100 for value in getattr(found, "metrics", []))
