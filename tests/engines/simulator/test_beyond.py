"""Memory of updates, averages of models and encoded messages: same bits, resumed or not."""

from __future__ import annotations

import pytest
import torch

from fedplt.client import MetricInfo
from fedplt.errors import ConfigError
from fedplt.federation import History, RoundRecord, RunFolder, Totals
from tests.support.jobs import blob_job, small_model
from tests.support.runs import final_state, run_job, same, without_time

pytestmark = pytest.mark.slow
MODEL = "model.safetensors"
ROTATING = {"name": "fedplt", "rotate_every": 1}
THREE = {"name": "uniform", "num_clients": 3}
PRIVATE = {
    "privacy": {"noise_multiplier": 1.0, "clip": 1.0},
    "sampling": {"name": "bernoulli", "probability": 0.5},
}
SETTINGS = {
    "memory": {"method": ROTATING, "server": {"memory": {"decay": 0.9}}},
    "stored as int8, sampled": {
        "server": {"memory": {"decay": 0.5, "horizon": 2, "precision": "int8"}}, "sampling": THREE
    },
    "outliers refused": {
        "method": ROTATING, "server": {"memory": {}, "max_medians": 1.5},
        "messages": {"up": "int4", "down": "int4"},
    },
    "clipped and remembered": {
        "method": ROTATING, "server": {"memory": {}, "aggregation": "clipped-mean", "clip": 1.5}
    },
    "memory of sub-models": {"method": {"name": "fedrolex"}, "server": {"memory": {}}},
    "decayed average": {"server": {"average": {"decay": 0.9}}},
    "window, momentum": {
        "server": {"average": {"window": 3}, "memory": {}, "optimizer": "momentum"}
    },
    "int8 up, int2 down": {"method": ROTATING, "messages": {"up": "int8", "down": "int2"}},
    "int2 up, int4 down, sampled": {"messages": {"up": "int2", "down": "int4"}, "sampling": THREE},
    "int4 up, int8 down, by norms": {
        "messages": {"up": "int4", "down": "int8"}, "sampling": {"name": "ocs", "budget": 2.0}
    },
    "float16 of sub-models": {
        "method": {"name": "heterofl"}, "messages": {"up": "int4", "down": "float16"}
    },
}  # fmt: skip


class Stop(Exception): ...


def stop(record):
    if record.round == 5:
        raise Stop


@pytest.mark.parametrize("name", SETTINGS)
def test_same_bits_with_two_workers_and_resumed(name, tmp_path):
    def job(workers):
        torch.manual_seed(0)
        engine = {"workers": workers}
        return blob_job(
            rounds=7, model=small_model(), checkpoint_every=2, engine=engine, **SETTINGS[name]
        )

    whole_history, whole = final_state(job(1))
    with pytest.raises(Stop):
        run_job(job(2), tmp_path / "run", on_round=stop)
    history, state = final_state(job(2), tmp_path / "run", resume=True)
    assert same(whole, state)
    assert without_time(history) == without_time(whole_history)
    assert whole_history.scores[-1] > 0.5
    assert any(r.rejected for r in history.rounds) == (name == "outliers refused")


@pytest.mark.parametrize("method", ["fedplt", "fedrolex"])
def test_memory_on_disk_has_the_bits_of_memory_in_ram(method, tmp_path):
    def job(**memory):
        torch.manual_seed(0)
        server, method_ = {"memory": memory}, {"name": method}
        settings = {"method": method_, "server": server, "checkpoint_every": 2}
        return blob_job(rounds=7, model=small_model(), **settings)

    history, tensors = final_state(job(store="ram"))
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        run_job(job(store="disk"), folder, on_round=stop)
    assert (folder / "updates").is_dir()
    resumed, others = final_state(job(store="disk"), folder, resume=True)
    assert same(tensors, others)
    assert without_time(history) == without_time(resumed)
    with pytest.raises(ConfigError, match=r"server\.memory\.store.*no folder"):
        run_job(job(store="disk"))


def test_bytes_are_those_of_the_encodings():
    whole = run_job(blob_job(rounds=3))
    small = run_job(blob_job(rounds=3, messages={"up": "int8", "down": "int2"}))
    up, down = (
        [
            getattr(r.cost, key) / getattr(w.cost, key)
            for r, w in zip(small.rounds, whole.rounds, strict=True)
        ]
        for key in ("bytes_up", "bytes_down")
    )
    assert max(up) < 0.8 and up[0] == up[1]  # the messages of this model are mostly headers
    assert down[0] > down[1] == down[2]  # first the model as int8, then differences


def test_both_models_are_scored_and_the_average_is_shipped(tmp_path):
    history = run_job(blob_job(rounds=4, server={"average": {"window": 2}}), tmp_path / "run")
    last = history.rounds[-1]
    assert last.average_score is not None and last.average_loss is not None
    assert last.average_loss != last.loss
    assert history.test_score is not None


@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_the_better_of_the_last_model_and_the_average_is_shipped(direction):
    scores = [(0.9, 0.1), *[(0.4, 0.5), (0.5, 0.45)] * 5]
    records = [
        RoundRecord(number, 1, 1.0, Totals(), Totals(), 0.1, score=score, average_score=average)
        for number, (score, average) in enumerate(scores, start=1)
    ]  # the first is not among the last ten; the means of those are 0.45 and 0.475
    metric = MetricInfo(name="any", direction=direction)
    history = History(records, metric=metric, ship="better")
    assert history.ends_with_average is (direction == "higher")
    assert history.shipped.final_score() == pytest.approx(0.475 if direction == "higher" else 0.45)


def test_the_file_of_the_model_is_the_better_one(tmp_path):
    job = blob_job(rounds=4, server={"average": {"window": 3, "ship": "better"}})
    history = run_job(job, tmp_path / "run")
    other = "last" if history.ends_with_average else "average"
    found = {path.stem for path in (tmp_path / "run").glob("*.safetensors")}
    assert found & {"last", "average"} == {other}


@pytest.mark.parametrize("ships_average", [True, False])
def test_each_model_is_found_by_its_name(tmp_path, monkeypatch, ships_average):
    monkeypatch.setattr(History, "ends_with_average", ships_average)
    job = blob_job(rounds=3, server={"average": {"window": 2, "ship": "better"}})
    run_job(job, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    shipped, other = ("average", "last") if ships_average else ("last", "average")
    assert folder.model_file(shipped) == folder.model_file("model") == folder.path / MODEL
    assert folder.model_file(other) == folder.path / f"{other}.safetensors"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"server": {"memory": {}, "aggregation": "median"}}, "memory"),
        ({"server": {"memory": {}}, "sampling": {"name": "ocs", "budget": 2.0}}, "server.memory"),
        ({"server": {"memory": {}}, "method": {"name": "feddrop"}}, "server.memory"),
        ({"server": {"max_medians": 5.0, "weights": "equal"}, **PRIVATE}, "server.max_medians"),
        ({"server": {"average": {"decay": 0.5, "window": 3}}}, "server.average"),
        ({"messages": {"down": "int8"}, "method": {"name": "heterofl"}}, "messages.down"),
    ],
)
def test_what_does_not_fit_is_refused(settings, key):
    with pytest.raises(ConfigError, match=key):
        run_job(blob_job(**settings))
