"""What consoles and notebooks print of public objects: one line, or a table."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

import fedplt
from fedplt.client.local_training import LocalTraining
from fedplt.configs import find_fleet
from fedplt.cutting import find_spaces
from fedplt.federation import make_job
from fedplt.fleet import PaperWorkload
from fedplt.methods import PlanRequest, make_method
from fedplt.text import brief

LONGEST = 300
CLIENTS = 40
DEEP = nn.Sequential(*(m for _ in range(20) for m in (nn.Linear(8, 8), nn.ReLU())), nn.Linear(8, 3))
INPUTS, LABELS = torch.randn(200, 8), torch.arange(200) % 3


@pytest.fixture(scope="module")
def history():
    return fedplt.train(
        DEEP[-9:],
        (INPUTS, LABELS),
        (INPUTS, LABELS),
        ratios=[0.5] * CLIENTS,
        rounds=12,
        sampling={"name": "fedplt-ocs", "budget": 5.0},
        evaluation={"per_client": True, "every": 2},
        diagnostics={"enabled": True},
        engine={"workers": 1},
    )


def public_objects(history):
    """An instance of every public class that is made for, or by, users; of a large federation."""
    layers = fedplt.cut(DEEP, INPUTS[:4])
    plan = fedplt.make_plan(layers, [0.5] * CLIENTS)
    spaces = find_spaces(DEEP, layers, INPUTS[:4])
    request = PlanRequest(layers, [0.5] * CLIENTS, 0, lambda: spaces)
    small = make_method("heterofl").full_plan(request)
    samples = fedplt.TensorSamples(INPUTS, LABELS)
    data = fedplt.TrainingData(samples, samples)
    config = fedplt.RunConfig(
        clients={"num_clients": CLIENTS, "num_examples": [5] * CLIENTS},
        data={"name": "mine:data", "split": "iid", "min_examples": 1},
    )
    updates = [fedplt.ClientUpdate(np.zeros(n, np.float32), 5, 1.0) for n in (500, 10**6)]
    yield from (layers, layers[0], plan, small, plan.assignment(1), small.assignment(1))
    yield from (fedplt.balanced_allocation(layers.sizes, 0.3), request)
    yield from (samples, data, config, config.clients, fedplt.load_config("fashion-mnist"))
    yield from updates
    yield from (make_job(config, DEEP, data), fedplt.check(DEEP, INPUTS[:8]))
    yield fedplt.TrainOrder(client=1, round=0, seed=0, assignment=plan.assignment(1),
                            training=LocalTraining(), learning_rate=0.1)  # fmt: skip
    fleet = fedplt.read_fleet(find_fleet("kitchen"))
    planned = fedplt.plan_fleet(fleet.devices, PaperWorkload(10**6, local_steps=9))
    yield from (planned, planned.devices[0], fedplt.LocalRecipe())
    yield fedplt.Evaluation(1.0, 0.5, np.arange(900), np.ones(900))
    yield from (fleet, fleet.devices[0], history, *history.rounds[:2])


def test_public_objects_print_as_one_short_line(history):
    for item in public_objects(history):
        text = repr(item)
        assert len(text) <= LONGEST and "\n" not in text, f"{type(item).__name__}: {text}"
        assert type(item).__name__ in text


def test_what_a_reader_wants_to_know_first(history):
    layers = fedplt.cut(DEEP, INPUTS[:4])
    assert repr(layers) == "<Layers: 21 layers, 1,467 parameters>"
    plan = fedplt.make_plan(layers, [0.5] * CLIENTS)
    assert repr(plan).endswith("40 clients, ratio 0.503, 21 layers, 1,467 parameters>")
    last = f"last accuracy {100 * history.scores[-1]:.1f} %"
    assert "12 rounds" in repr(history) and last in repr(history)
    assert "mean of the last 6" in repr(history)
    assert repr(fedplt.History([])) == "<History: 0 rounds, none evaluated>"
    assert repr(fedplt.SamplingConfig()) == "SamplingConfig()"
    assert brief(fedplt.TensorSpec("w", (2, 2))) == "TensorSpec(name='w', shape=(2, 2))"


def test_notebooks_show_tables(history):
    layers = fedplt.cut(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.zeros(2, 2))
    plan = fedplt.make_plan(layers, [0.5, 1.0])
    assert "sub-layers" in layers._repr_html_() and "clients per sub-layer" in plan._repr_html_()
    shown = history._repr_html_()
    assert shown.startswith("<pre>&lt;History: 12 rounds")
    assert shown.count("\n") < 16 and "\n12  " in shown


def test_a_history_as_rows_and_frame(history, monkeypatch):
    rows = history.rows()
    assert [row["round"] for row in rows] == list(range(1, 13))
    assert rows[-1]["total_bytes_up"] == history.rounds[-1].total.bytes_up
    assert rows[-1]["total_seconds"] == pytest.approx(sum(r.seconds for r in history.rounds))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fedplt.RunError, match="to_frame needs pandas: pip install pandas"):
        history.to_frame()
    made = types.SimpleNamespace(set_index=lambda name: (name, made.rows))
    pandas = types.ModuleType("pandas")
    pandas.DataFrame = lambda rows: (setattr(made, "rows", rows), made)[1]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert history.to_frame() == ("round", rows)


def test_a_history_as_a_data_frame(history):
    pytest.importorskip("pandas")
    frame = history.to_frame()
    assert len(frame) == 12 and frame["score"].count() == 6
    assert frame.loc[12, "score"] == history.scores[-1]


def test_a_history_draws_itself(history, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = history.plot()
    (line,) = axes.get_lines()
    assert line.get_xdata().tolist() == [2, 4, 6, 8, 10, 12]
    np.testing.assert_allclose(line.get_ydata(), 100 * np.array(history.scores))
    assert axes.get_ylabel() == "accuracy (%)"
    again = history.plot("train_loss", "total_bytes_up", ax=axes)
    assert again is axes and len(axes.get_lines()) == 2
    with pytest.raises(fedplt.RunError, match=r"'train_los'.*'train_loss'"):
        history.plot("train_los")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(fedplt.RunError, match=r"plot needs matplotlib: pip install 'fedplt\[pict"):
        history.plot()
