"""A method of one's own, named by import path: it is found in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fedplt import ConfigError
from fedplt.errors import RunError
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.methods import Method, make_method, read_plan
from fedplt.methods.heterofl import HeteroFL
from tests.support.image_jobs import plan_request
from tests.support.tiny import CONFIG

METHODS_OF_MY_OWN = """
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

import fedplt
from fedplt.methods import Method
from fedplt.methods.heterofl import HeteroFL
from fedplt.planning.submodel_plans import kept_units


@dataclass(frozen=True, kw_only=True)
class OneLayer(Method):
    name: ClassVar[str] = "onelayer"
    holds: ClassVar[str] = "everything"
    trains: ClassVar[str] = "one layer"
    layer: int = 0

    def plan(self, request):
        usual = fedplt.make_plan(request.layers, request.ratios)
        counts = np.zeros_like(usual.counts)
        counts[:, self.layer] = request.layers.num_sublayers[self.layer]
        return replace(usual, counts=counts)


@dataclass(frozen=True, kw_only=True)
class LastUnits(HeteroFL):  # and HeteroFL's name, which must not be mistaken for it
    def select_units(self, width, rate, *, space, seed, round, client):
        return np.arange(width - kept_units(width, rate), width)


@dataclass(frozen=True, kw_only=True)
class Failing(OneLayer):
    def plan(self, request):
        return 1 // 0


@dataclass(frozen=True, kw_only=True)
class Planless(OneLayer):
    def plan(self, request):
        return [1.0]


@dataclass(frozen=True, kw_only=True)
class Odd(OneLayer):
    device: torch.device | None = None


@dataclass(frozen=True, kw_only=True)
class Nameless(Method):
    pass


def build():
    class Inner(OneLayer):
        pass

    return Inner


Hidden = build()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a configuration and a file of methods, in which the user is."""
    (tmp_path / "mine.py").write_text(METHODS_OF_MY_OWN)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    root = Path(__file__).parents[2]  # for tests.support.tiny in other processes
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(root / "src")]))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mine:OneLayer", "mine:LastUnits"])
def test_runs_resumes_and_reports(fedplt, here, name):
    chosen = ["--set", f"method.name={name}"]
    whole = fedplt("run", "tiny.toml", "--out", "whole", *chosen)
    assert whole.returncode == 0, whole.stderr
    assert fedplt("run", "tiny.toml", "--out", "two", *chosen, "--set", "rounds=3").returncode == 0
    done = fedplt("resume", "two", "--set", "rounds=6")
    assert done.returncode == 0, done.stderr
    assert "report:" in done.stdout  # it reads the plan
    one, two = (load_file(here / folder / "model.safetensors") for folder in ("whole", "two"))
    assert all((one[key] == two[key]).all() for key in one)
    assert name in (here / "two" / "report.html").read_text()


@pytest.mark.slow
def test_other_processes_find_it(fedplt, here):
    """A comparison runs in processes of its own, and what they wrote is reported in another."""
    options = ["--methods", "mine:LastUnits", "--seeds", 1, "--set", "rounds=1", "--out", "out"]
    done = fedplt("compare", "tiny.toml", *options)
    assert done.returncode == 0, done.stderr
    (folder,) = (path for path in (here / "out").iterdir() if path.is_dir())
    command = [sys.executable, "-m", "fedplt.cli", "report", folder]
    report = subprocess.run(command, capture_output=True, text=True, check=False)
    assert report.returncode == 0, report.stderr


def test_its_options_are_its_fields(here):
    plan = make_method("mine:OneLayer", {"layer": 1}).full_plan(plan_request("fcn"))
    assert (plan.counts > 0).tolist() == [[False, True, False]] * 4
    with pytest.raises(
        ConfigError, match=r"mine:OneLayer has no such option\. Did you mean 'layer'"
    ):
        make_method("mine:OneLayer", {"layr": 1})


def test_plans_of_its_sub_models_are_read_again(here):
    plan = make_method("mine:LastUnits", {"scaler": "none"}).full_plan(plan_request("cnn"))
    data = json.loads(json.dumps(plan.to_json()))
    assert data["method"] == {**data["method"], "name": "mine:LastUnits", "scaler": "none"}
    again = read_plan(data)
    assert (
        again == plan
        and again.assignment(3).held[0].tolist() == plan.assignment(3).held[0].tolist()
    )
    assert plan != HeteroFL(scaler="none").full_plan(plan_request("cnn"))
    assert plan.assignment(3).held[0][-1] == 3  # the last of four channels


@pytest.mark.slow
def test_a_plan_whose_method_is_gone(fedplt, here):
    options = ["--set", "method.name=mine:LastUnits", "--set", "rounds=1"]
    assert fedplt("run", "tiny.toml", "--out", "run", *options).returncode == 0
    del sys.modules["mine"]
    (here / "mine.py").unlink()
    with pytest.raises(RunError, match=r"made by 'mine:LastUnits'.*imports nothing"):
        RunFolder.open(Path("run")).plan()
    assert fedplt("report", "run").returncode == 0  # what can be told without the plan's method


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere:OneLayer", "'nowhere:OneLayer' cannot be imported (ModuleNotFoundError"),
        ("mine:Nothing", "cannot be imported (AttributeError"),
        ("mine:OneLayr", "Did you mean 'OneLayer'?"),
        ("mine:", "cannot be imported"),
        ("math:pi", "is a float; name a subclass of fedplt.methods.Method instead"),
        ("mine:build", "is a function; name a subclass"),
        ("torch.nn:Linear", "is the class Linear; name a subclass"),
        ("mine:Nameless", "lacks name, holds, trains, plan"),
        ("fedplt.methods:Method", "lacks name, holds, trains, plan"),
        ("mine:Hidden", "define it at the top level of its module"),
        ("mine:Odd", "has a field that is no option: "),
        ("mine:Failing", "mine.py, line 37: ZeroDivisionError"),
        ("mine:Planless", "the plan of 'mine:Planless' is a list, not a Plan"),
        ("FedPLT", "Did you mean 'fedplt'? Your own is named by import path"),
    ],
)
def test_what_is_no_method_is_refused(fedplt, here, name, expected):
    done = fedplt("run", "tiny.toml", "--out", "run", "--set", f"method.name={name}")
    assert done.returncode == 2
    assert expected in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (here / "run").exists()


def test_built_in_methods_keep_their_names():
    assert make_method("fedrolex").reference == "fedrolex"
    assert issubclass(type(make_method("fedplt")), Method)
