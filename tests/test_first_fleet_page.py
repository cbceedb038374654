"""docs/first_fleet.md: its files and its commands, as a newcomer uses them."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from fedplt import load_history

PAGE = Path("docs/first_fleet.md").read_text()
FILES = {"mine.py": "py", "devices.csv": "csv", "mine.toml": "toml"}


@pytest.mark.slow
def test_the_page(fedplt, tmp_path, monkeypatch):
    for name, kind in FILES.items():
        (block,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / name).write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    plan, run, report = re.findall(r"```sh\nfedplt (.*)\n```", PAGE)
    planned = fedplt(*shlex.split(plan))
    assert planned.returncode == 0, planned.stderr
    shown = re.search(r"```\n(device .*?)\.\.\.\n(.*?)```", PAGE, re.DOTALL)
    assert all(part in planned.stdout for part in shown.groups())
    trained = fedplt(*shlex.split(run), "--set", "rounds=1", "--set", "engine.workers=1")
    assert trained.returncode == 0, trained.stderr
    assert shown[1] in trained.stdout  # the run's plan is the one that was looked at
    (tmp_path / "runs/mine-seed0/report.html").unlink()
    assert fedplt(*shlex.split(report)).returncode == 0
    assert "Time by device" in (tmp_path / "runs/mine-seed0/report.html").read_text()
    assert len(load_history("runs/mine-seed0").rounds) == 1
