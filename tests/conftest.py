"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from fedplt import cli

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and some tests are about Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The process that only hands out the tests does not import torch, which takes seconds.
os.environ["OMP_NUM_THREADS"] = "1"  # before others do: test processes share the cores
pytest.register_assert_rewrite("tests.support")  # before anything of it is imported

# How long an example takes says nothing on a busy machine.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("tests"), max_examples=20)
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def fcn():
    from tests.support.layers import fcn_layers

    return fcn_layers()


@pytest.fixture
def forked_runs(monkeypatch):
    """The runs of a comparison are forked: importing torch anew takes seconds."""
    from fedplt_compare import processes, run_process
    from tests.support.processes import Forked

    def start(command, *, stdout, stderr):
        assert command[:4] == [sys.executable, "-P", "-m", "fedplt_compare.run_process"]
        assert stdout == subprocess.PIPE
        return Forked(run_process.main, command[4:], stderr=stderr)

    replacement = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)
    monkeypatch.setattr(processes, "subprocess", replacement)


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(monkeypatch, capfd):
    """Run a typer application in this process: importing torch anew takes seconds."""

    def run(app, name: str, *arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        monkeypatch.setenv("PYTHONSAFEPATH", "1")  # main() sets it, for this test alone
        with pytest.raises(SystemExit) as exited:
            cli.main(app)
        return Done(int(exited.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture
def fedplt(command):
    return partial(command, cli.app, "fedplt")


def pytest_collection_finish():
    """Keep what was imported and collected out of garbage collections, which tests cause often."""
    gc.collect()
    gc.freeze()
