"""Functions that are called with every round's record, and the device that a run takes."""

from __future__ import annotations

import json
import math
import runpy
import sys
from pathlib import Path

import pytest
import torch

import fedplt
from fedplt.errors import ConfigError, RunError
from fedplt.federation.run_folder.folder import RunFolder
from tests.support.shown import blocks
from tests.support.tiny import CONFIG
from tests.support.trackers import StandIn

SHOWN = dict(blocks("python")) | {f"{name}:py": code for name, code in blocks("py")}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "track", raising=False)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    return tmp_path


def test_the_example_for_wandb(folder, monkeypatch):
    code = next(code for code in SHOWN.values() if "import wandb" in code)
    (folder / "script.py").write_text(code)
    wandb = StandIn("wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    runpy.run_path("script.py", run_name="__main__")
    assert [step for step, _ in wandb.logged] == [1, 2, 3, 4, 5]
    assert all({"validation/score", "total/bytes_up"} <= set(values) for _, values in wandb.logged)
    assert wandb.finished


def test_the_example_for_mlflow_by_import_path(folder, monkeypatch):
    mlflow = StandIn("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    (folder / "track.py").write_text(next(c for c in SHOWN.values() if "import mlflow" in c))
    config = fedplt.load_config("tiny.toml", ["engine.on_round=track:log", "evaluation.every=2"])
    history = fedplt.run(config, "run")
    assert mlflow.logged == [(r.round, fedplt.scalars(r)) for r in history.rounds]
    assert [step for step, _ in mlflow.logged] == list(range(1, 7))
    assert "validation/score" not in mlflow.logged[0][1]  # not evaluated
    assert all(math.isfinite(x) for _, values in mlflow.logged for x in values.values())


def test_a_function_that_fails_saves_the_run_and_can_be_taken_out(folder):
    (folder / "track.py").write_text("def log(record):\n    if record.round == 3: {}['no key']\n")
    config = fedplt.load_config("tiny.toml", ["engine.on_round=track:log"])
    with pytest.raises(RunError, match=r"track:log.*after round 3.*KeyError.*no key"):
        fedplt.run(config, "run")
    seen = []
    history = fedplt.resume("run", changes=["engine.on_round="], on_round=seen.append)
    assert [record.round for record in seen] == [4, 5, 6]  # round 3 was saved
    assert history.scores == fedplt.run("tiny.toml", "whole").scores


@pytest.mark.parametrize("path", ["track:nothing", "nowhere:log"])
def test_a_function_that_is_not_there_is_refused_before_the_first_round(folder, path):
    (folder / "track.py").write_text("")
    with pytest.raises(ConfigError, match=f"engine.on_round: '{path}'"):
        fedplt.run(fedplt.load_config("tiny.toml", [f"engine.on_round={path}"]), "run")
    assert not (folder / "run").exists()


def digest(path):
    return json.loads(Path(path, "result.json").read_text())["weights_sha256"]


def test_auto_takes_the_processor_where_there_is_no_gpu_and_records_it(folder, monkeypatch):
    for there in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(there, "is_available", lambda: False)
    for name, device in (("plain", "cpu"), ("auto", "auto")):
        fedplt.run(fedplt.load_config("tiny.toml", [f"engine.device={device}"]), name)
        assert RunFolder.open(name).config().engine.device == "cpu"
    assert digest("auto") == digest("plain")


@pytest.mark.parametrize("there", ["cuda", "mps"])
def test_auto_takes_what_torch_finds(folder, monkeypatch, there):
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    kinds = {"cuda": torch.cuda, "mps": torch.backends.mps}
    monkeypatch.setattr(kinds[there], "is_available", lambda: True)
    with pytest.raises(ConfigError, match=f"engine.device: '{there}' cannot be used here"):
        fedplt.run(fedplt.load_config("tiny.toml", ["engine.device=auto"]))


def test_a_device_without_effect_is_refused(folder):
    with pytest.raises(ConfigError, match="'flower' does not use device"):
        fedplt.load_config("tiny.toml", ["engine.name=flower", "engine.device=auto"])
