"""Flower apps as users have them: written by ``fedplt flower init``, or changed from FedAvg."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedplt.cli import app as cli
from fedplt.errors import RunError
from fedplt_flower.app.scaffold import init_app
from fedplt_flower.processes import environment
from tests.support.flower_runs import simulate
from tests.support.quickstart import apply, make_quickstart, shown_changes


def test_an_app_is_written_once(tmp_path):
    done = CliRunner().invoke(cli, ["flower", "init", str(tmp_path / "my app")])
    assert done.exit_code == 0, done.output
    assert "runs without changes" in done.output
    names = {str(p.relative_to(tmp_path / "my app")) for p in tmp_path.rglob("*") if p.is_file()}
    package = {f"my_app/{name}.py" for name in ("__init__", "task", "client_app", "server_app")}
    assert names == {"pyproject.toml", "LICENSE", "README.md", *package}
    for path in tmp_path.rglob("*.py"):
        compile(path.read_text(), path, "exec")
        assert "$" not in path.read_text()
    with pytest.raises(RunError, match="exists and is not empty"):
        init_app(tmp_path / "my app")
    with pytest.raises(RunError, match="--publisher"):
        init_app(tmp_path / "other", publisher="a b")


def test_flower_needs_no_package_of_an_index_to_run_the_app(tmp_path):
    """For every run Flower installs the app's dependencies afresh, from an index."""
    from flwr.supercore.superexec import dependency_installer as installer

    init_app(tmp_path / "mine")
    names = installer._get_project_dependencies(tmp_path / "mine")
    assert [name[:4] for name in names] == ["flwr"]  # its build asks for the version
    assert installer._exclude_flwr_dependencies(names) == []


def test_the_shown_changes_are_few_and_fit(tmp_path):
    package = make_quickstart(tmp_path) / "quickstart"
    changes = shown_changes()
    assert set(changes) == {"client_app.py", "server_app.py"}
    assert sum(apply(change, package / name) for name, change in changes.items()) < 10
    for path in package.glob("*.py"):
        compile(path.read_text(), path, "exec")


@pytest.mark.flower
@pytest.mark.timeout(600)
def test_flowers_build_takes_the_app(tmp_path):
    init_app(tmp_path / "mine", publisher="someone")
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [Path(sys.executable).with_name("flwr"), "build", "--app", tmp_path / "mine"],
        cwd=tmp_path, env=environment(tmp_path / "home"), capture_output=True, text=True,
        timeout=400, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.rglob("*.fab")), done.stdout


@pytest.mark.flower
@pytest.mark.timeout(1200)
def test_a_new_app_learns_in_flowers_simulation(tmp_path):
    init_app(tmp_path / "mine")
    out = tmp_path / "run"
    said = simulate(
        tmp_path / "mine", tmp_path / "flower", num_clients=4, until=out / "result.json",
        out=str(out), num_server_rounds=4,
    )  # fmt: skip
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [record["num_clients"] for record in records] == [4] * 4, said
    assert not any(record.get("rejected") for record in records), said
    assert records[-1]["score"] > records[0]["score"]


@pytest.mark.flower
@pytest.mark.timeout(1200)
def test_a_changed_quickstart_runs_in_flowers_simulation(tmp_path):
    app = make_quickstart(tmp_path)
    for name, change in shown_changes().items():
        apply(change, app / "quickstart" / name)
    saved = tmp_path / "final.pt"
    said = simulate(
        app, tmp_path / "flower", num_clients=4, until=saved, out=str(tmp_path),
        num_server_rounds=2,
    )  # fmt: skip
    assert "fedplt: round 2 of 2: 4 clients" in said
    assert set(torch.load(saved)) == {
        f"{layer}.{kind}" for layer in ("conv", "hidden", "head") for kind in ("weight", "bias")
    }
