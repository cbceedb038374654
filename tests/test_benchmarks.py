"""The benchmarks run. They are not part of the package, so nothing else would notice."""

import json
import multiprocessing
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import local, scale

pytestmark = pytest.mark.slow


def test_local_training_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local, "CASES", [("fcn", {"num_inputs": 784}, (784,), [1.0, 0.29])])
    monkeypatch.setattr(local, "STEPS", 1)
    monkeypatch.setattr(local, "PASSES", 1)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # other tests keep theirs
    monkeypatch.setattr(sys, "argv", ["local", str(tmp_path / "local.json")])
    local.main()
    full, partial = json.loads((tmp_path / "local.json").read_text())["cases"]
    assert partial["flops_over_full"] < full["flops_over_full"] == 1.0
    assert partial["seconds_per_step"] > 0


def test_large_fleets_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scale, "FEW", 40)
    monkeypatch.setattr(scale, "MANY", 80)
    monkeypatch.setattr(scale, "ROUNDS", 1)
    forked = multiprocessing.get_context("fork")  # importing torch anew takes seconds
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forked)
    monkeypatch.setattr(sys, "argv", ["scale", str(tmp_path / "scale.json")])
    scale.main()
    fleets = json.loads((tmp_path / "scale.json").read_text())["fleets"]
    assert fleets["80"]["data_megabytes"] > fleets["40"]["data_megabytes"] > 0
