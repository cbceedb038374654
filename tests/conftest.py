"""Fixtures of all tests."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest
import torch

from fedplt import cli

pytest.register_assert_rewrite("tests.support")  # before anything of it is imported


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def fcn():
    from tests.support.layers import fcn_layers

    return fcn_layers()


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def fedplt(monkeypatch, capfd):
    """Run a command in this process: importing torch anew takes seconds."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["fedplt", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return Done(int(exited.value.code or 0), *capfd.readouterr())

    return run
