"""A server without data: the same bits, and the nodes check partial training for themselves."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from fedplt.api import run
from fedplt.configuration import dump_config, load_config, override, parse_config
from fedplt.errors import DivergedError
from fedplt.federation.start import job_of
from fedplt.kernels import linear
from fedplt_flower.server.server_app import run_on
from tests.support.flower_nodes import MemoryWire
from tests.support.runs import same

pytestmark = pytest.mark.slow

GROUPS = [{"num_clients": 1, "ratio": 1.0}, {"num_clients": 2, "ratio": 0.5}]
CONFIG = parse_config(
    {
        "rounds": 2,
        "data": {"name": "tests.support.tiny:data", "alpha": 0.5},
        "model": {"name": "tests.support.tiny:model", "input_shape": [6]},
        "clients": {"num_clients": 3, "groups": GROUPS},
        "training": {"batch_size": 16, "learning_rate": 0.1},
    }
)


def run_without_data(folder, *changes):
    """The server app of a deployment; the nodes, in this process, have the data."""
    path, config = folder / "run.toml", override(CONFIG, changes)
    path.write_text(dump_config(override(config, ["engine.name=flower", "data.name=nodes"])))
    wire = MemoryWire(job_of(config), folder / "states")
    run_on(wire, {"config": str(path), "out": str(folder / "run")})
    return wire


def test_same_bits_as_with_data_on_the_server(tmp_path):
    run_without_data(tmp_path)
    run(CONFIG, tmp_path / "simulated")
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("run", "simulated")]
    assert same(*models)
    learned = load_config(tmp_path / "run" / "config.toml").clients.num_examples
    assert learned == job_of(CONFIG).num_examples.tolist()


def test_same_bits_with_a_sampler_and_a_rule_of_ones_own(tmp_path):
    own = ["sampling.name=tests.support.own_code:Turns", "sampling.options.groups=2",
           "server.aggregation=tests.support.own_code:OwnMedian"]  # fmt: skip
    run_without_data(tmp_path, *own)
    run(override(CONFIG, own), tmp_path / "simulated")
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("run", "simulated")]
    assert same(*models)
    run(CONFIG, tmp_path / "plain")
    assert not same(models[0], load_file(tmp_path / "plain" / "model.safetensors"))


def test_nodes_refuse_to_train_wrongly(tmp_path, monkeypatch):
    right = linear.move_rows
    monkeypatch.setattr(linear, "move_rows", lambda t, grad, *rest: right(t, 1.01 * grad, *rest))
    with pytest.raises(DivergedError, match=r"client 0: [\s\S]*off by 0\.0"):
        run_without_data(tmp_path, "model.name=tests.support.tiny:normed_model")
    assert not list((tmp_path / "states").rglob("*.*"))


def test_a_node_checks_once(tmp_path, monkeypatch):
    checks = []
    counted = "fedplt_flower.node.client_app.check_job"
    monkeypatch.setattr(counted, lambda job, assignment: checks.append(assignment))
    run_without_data(tmp_path)
    assert len(checks) == 3
