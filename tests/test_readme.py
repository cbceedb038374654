"""What the README and the documents show is run here."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys

import pytest

from tests.support.shown import PAGES, blocks
from tests.support.trackers import StandIn

CODE = dict(blocks("python"))


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script in its own folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "script.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", CODE)
def test_python_code_runs(name, script, capsys, monkeypatch):
    tracker = StandIn("wandb")  # not installed; tests/api/test_tracking.py looks at its calls
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    script.write_text(CODE[name])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index.md:1"])  # others start theirs alike
def test_training_code_runs_with_spawned_workers(name, tmp_path):
    """As on macOS: every worker reads the script again."""
    pretend = """import fedplt.engines.simulator.engine as engine
engine.default_start_method = lambda device: "spawn"
"""
    (tmp_path / "script.py").write_text(pretend + CODE[name])
    command = [sys.executable, "-W", "error", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page} links to {target}"


def test_make_explains_itself():
    text = subprocess.run(["make"], capture_output=True, text=True, check=True).stdout
    for target in ("setup", "run", "test", "test-fast", "check", "fix", "docs", "coverage"):
        assert re.search(rf"^\s*make {target}\b", text, re.MULTILINE), target


@pytest.mark.slow
def test_the_api_page_is_what_the_docstrings_say():
    done = subprocess.run([sys.executable, "tools/api_page.py", "--check"])
    assert done.returncode == 0, "docs/api.md is old: make api-page"
