"""The development environment is locked by digests, its licenses are listed, nothing calls home."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tools.licenses_page import normal
from tools.lock import locked

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements-dev.txt").read_text()
LOCKED = locked(LOCK)


def test_the_lock_is_of_the_pinned_versions():
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    names = {normal(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in wanted} - {"fedplt"}
    assert names - {"torch"} <= LOCKED.keys(), "run make lock"
    different = {
        name: (version, LOCKED[normal(name)])
        for name, version in pins.items()
        if normal(name) in LOCKED and version not in LOCKED[normal(name)]
    }
    assert not different, "run make lock"


def test_every_locked_package_has_digests_and_no_place():
    packages = re.split(r"^(?=[\w.-]+==)", LOCK, flags=re.M)[1:]
    assert len(packages) >= len(LOCKED) > 50
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", package) for package in packages)
    assert "torch" not in LOCKED
    assert not re.search(r"://|--index|--find", LOCK)


def test_the_page_lists_the_license_of_every_locked_package():
    page = (ROOT / "docs" / "licenses.md").read_text()
    assert not [name for name in [*LOCKED, "torch"] if name not in page], "run make licenses"


WATCH = """
import sys

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise SystemExit(f"{event} {arguments}")

sys.addaudithook(watch)
import fedplt, fedplt.cli.app, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
data = torch.randn(40, 4), torch.arange(40) % 2
engine = {"workers": 1, "start_method": "fork"}
fedplt.train(model, data, data, rounds=1, ratios=[1.0, 0.5], engine=engine)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_no_connection_at_import_or_run():
    done = subprocess.run(
        [sys.executable, "-c", WATCH], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
