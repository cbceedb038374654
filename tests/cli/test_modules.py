"""Which modules the command line imports: the user's come after all that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedplt
from fedplt import ConfigError
from fedplt.imports import import_object, search_also

SOURCE = str(Path(fedplt.__file__).parents[1])
CONSOLE = "import sys; sys.path[:1] = []; from fedplt.cli import main; main()"
"""The console script's first entry of ``sys.path`` is the folder of the script."""
STARTS = {
    "module": [sys.executable, "-m", "fedplt"],
    "module of verbs": [sys.executable, "-mfedplt.cli"],
    "console": [sys.executable, "-c", CONSOLE],
}
CONFIG = """
rounds = 1
[data]
name = "own_parts:data"
[model]
name = "own_parts:model"
[clients]
num_clients = 3
[engine]
workers = 1
start_method = "spawn"
check = false
"""
PARTS = """
import torch
from fedplt import TensorSamples, TrainingData

def samples():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 4, generator=generator)
    return TensorSamples(x, (x.sum(1) > 0).long())

def data():
    return TrainingData(samples(), samples())

def model():
    return torch.nn.Linear(4, 2)
"""
NAMES = (
    "jinja2", "typer", "rich", "safetensors", "pydantic", "multiprocessing", "inspect", "typing",
    "json", "numpy", "torch", "dataclasses", "enum", "socket", "flwr", "sitecustomize",
)  # fmt: skip


def start(words, cwd, how="module"):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    environment |= {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*STARTS[how], *map(str, words)], cwd=cwd, env=environment, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("how", STARTS)
def test_modules_of_the_current_folder_do_not_replace_installed_ones(tmp_path, how):
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')"
        )
    (tmp_path / "own_parts.py").write_text(PARTS)
    (tmp_path / "config.toml").write_text(CONFIG)
    done = start(["run", "config.toml", "--out", "run"], tmp_path, how)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert (tmp_path / "run" / "report.html").is_file()


def test_evaluate_and_resume_find_the_modules_that_run_found(tmp_path):
    """The configuration is in one folder, its modules in that of the command."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (project / "configs").mkdir(parents=True)
    elsewhere.mkdir()
    (project / "own_parts.py").write_text(PARTS)
    (project / "configs" / "config.toml").write_text(CONFIG)
    done = start(["run", "configs/config.toml", "--out", "run"], project)
    assert done.returncode == 0, done.stderr
    done = start(["evaluate", project / "run", "own_parts:samples", "--json"], elsewhere)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_examples"] == 60
    done = start(["resume", project / "run", "--set", "rounds=2", "--quiet"], elsewhere)
    assert done.returncode == 0, done.stderr


def test_a_module_with_an_installed_ones_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "jinja2.py").write_text("def build(): ...")
    search_also(str(tmp_path))
    with pytest.raises(ConfigError, match=r"model.name: 'jinja2:build'.*jinja2.py. Rename"):
        import_object("jinja2:build", "model.name")


def test_the_configurations_folder_comes_before_the_current_one(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("here", "beside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "twice_named.py").write_text(f"def place(): return {name!r}")
    monkeypatch.chdir(tmp_path / "here")
    search_also(str(tmp_path / "beside"))
    assert import_object("twice_named:place", "model.name")() == "beside"
    assert sys.path[-1] == str(tmp_path / "here")
    sys.modules.pop("twice_named")
