"""A client does not trust the server's description of the model."""

from __future__ import annotations

import copy
import json

import pytest

from fedplt_flower.messages import find_metric, metric_names
from fedplt_flower.records import from_records, to_records
from fedplt_flower.server.wire import answer_of
from tests.support.app_nodes import (
    MemoryGrid,
    app_of,
    arrays_of,
    image_case,
    small_strategy,
    started,
)
from tests.support.jobs import blob_job

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def orders():
    """A grid with an order for slices, and one with an order for a sub-model."""
    job = blob_job(rounds=1)
    whole = MemoryGrid(app_of(job), 5)
    small_strategy().start(whole, arrays_of(job.model), num_rounds=1)
    job, strategy, make_model = image_case("heterofl", "cnn")
    sub = MemoryGrid(app_of(job, make_model), 4)
    started(job, strategy, sub)
    return whole, sub


def change(header, path, value):
    *way, last = path
    for key in way:
        header = header[key]
    header[last] = value


CHANGES = {
    "another name": (0, ["layers", 0, "tensors", 0, "name"], "os.system", "no such tensor here"),
    "another shape": (0, ["layers", 0, "tensors", 0, "shape"], [8, 7], "not the server's"),
    "a buffer": (0, ["layers", 0, "tensors", 0, "is_buffer"], True, "not the server's"),
    "another axis": (0, ["layers", 0, "tensors", 0, "axis"], 5, "cannot be read"),
    "a negative axis": (0, ["layers", 0, "tensors", 0, "axis"], -1, "cannot be"),
    "no blocks": (0, ["layers", 0, "tensors", 0, "repeats"], 0, "cannot be read"),
    "no sub-layers": (0, ["layers", 0, "num_sublayers"], 0, "cannot be read"),
    "negative sub-layers": (0, ["layers", 0, "num_sublayers"], -1, "cannot cut"),
    "no layers": (0, ["layers"], "all", "layers: "),
    "other slices": (0, ["assignment", "slices", 0], [[0, 99]], "ascending ranges"),
    "unknown local": (0, ["local"], ["secret"], "no tensor 'secret'"),
    "another client": (0, ["client"], 1, "this is client 0"),
    "another recipe": (0, ["recipe", "scaler"], "rm -rf", "cannot be read"),
    "no spaces": (1, ["spaces"], None, "without its units"),
    "other widths": (1, ["spaces", "widths", 0], 3, "does not have the units"),
    "spaces of nothing": (1, ["spaces", "tensors"], [], "no units of"),
    "more": (0, ["import"], "os", "import: "),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_wrong_order_is_refused_in_words(name, orders):
    which, path, value, words = CHANGES[name]
    grid = orders[which]
    node = 103 if which else 100  # HeteroFL's first client has the whole model
    orders_of = (m for m in grid.sent if m.metadata.dst_node_id == node)
    message = next(m for m in orders_of if m.metadata.message_type == "train")
    header, arrays = from_records(message.content)
    header = json.loads(json.dumps(header))
    change(header, path, value)
    wrong = copy.copy(message)
    records = to_records(header, arrays)
    records["config"] = message.content["config"]
    wrong.content = records
    error = answer_of(grid.app(wrong, grid.contexts[node])).error
    assert error is not None
    assert words in error


def test_a_metric_of_exactly_this_name_comes_first():
    metrics = {"train_accuracy": 0.9, "accuracy": 0.7, "eval_f1": 0.5}
    assert find_metric(metrics, *metric_names("accuracy")) == 0.7
    assert find_metric(metrics, *metric_names("F1")) == 0.5
    assert find_metric(metrics, *metric_names("?")) is None
