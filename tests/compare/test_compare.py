"""Comparisons: same everything but the method; queries at equal cost; continued where stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedplt import RunError
from fedplt.compare.results import (
    MEASURES,
    Comparison,
    Contestant,
    accuracy_within,
    cost_to_reach,
)
from fedplt.compare.run import compare
from fedplt.federation.folder import RunFolder
from fedplt.federation.load_config import load_config
from fedplt.federation.records import History, RoundRecord, Totals
from tests.test_cli import CONFIG


def history(accuracies, each):
    rounds = []
    for number, accuracy in enumerate(accuracies, start=1):
        total = Totals(number * each, number * each, number * each, float(number * each))
        rounds.append(RoundRecord(number, 1, 1.0, total, total, 0.1, accuracy, 0.5))
    return History(rounds)


def test_accuracy_at_a_budget_and_cost_to_an_accuracy():
    run = history([0.1, None, 0.5, 0.4], each=10)
    assert accuracy_within(run, "bytes up", 30) == 0.5
    assert accuracy_within(run, "bytes up", 25) == pytest.approx(0.4)  # 0.1 at 10, 0.5 at 30
    assert accuracy_within(run, "bytes", 70) == pytest.approx(0.45)
    assert accuracy_within(run, "bytes", 1000) == 0.4
    assert accuracy_within(run, "exact FLOPs", 9) is None
    assert cost_to_reach(run, "paper FLOPs", 0.45) == 30
    assert cost_to_reach(run, "bytes", 0.1) == 20
    assert cost_to_reach(run, "bytes", 0.6) is None


def test_the_cheapest_contestant_sets_the_budget():
    cheap = Contestant({"name": "a"}, {1: history([0.2, 0.3], 10)}, 0.1)
    dear = Contestant({"name": "b"}, {1: history([0.1, 0.2, 0.9], 15)}, 1.0)
    found = Comparison({"cheap": cheap, "dear": dear}, {})
    assert found.budget("bytes up") == 20
    equal = found.at_equal("bytes up")
    assert equal["cheap"] == [0.3] and equal["dear"] == pytest.approx([0.1 + 0.1 / 3])
    text = found.text(0.3)
    assert "30.0 +- 0.0" in text and "never" not in text
    assert "never" in found.text(0.95)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(CONFIG.replace("rounds = 6", "rounds = 3"))
    return path


def test_from_the_command_line(fedplt, config, tmp_path):
    out = tmp_path / "comparison"
    arguments = (
        "compare", config, "--methods", "fedplt,heterofl", "--seeds", "1,2", "--out", out,
        "--option", "heterofl.scaler=none", "--accuracy", "0.4",
    )  # fmt: skip
    done = fedplt(*arguments)
    assert done.returncode == 0, done.stderr
    assert "cost until 40 % accuracy" in done.stdout
    assert (out / "comparison.png").is_file()
    found = json.loads((out / "comparison.json").read_text())
    assert found["target_accuracy"] == 0.4
    assert set(found["methods"]["heterofl"]["runs"]) == {"1", "2"}
    assert found["methods"]["heterofl"]["method"] == {"name": "heterofl", "scaler": "none"}
    assert set(found["budgets"]) == set(MEASURES)
    runs = {label: RunFolder.open(out / f"{label}-seed1") for label in ("fedplt", "heterofl")}
    configs = {label: run.config() for label, run in runs.items()}
    assert configs["fedplt"].data == configs["heterofl"].data

    # Started again, it only reads; with a run cut short, it continues that one, to the same bits.
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")}
    assert fedplt(*arguments).returncode == 0
    assert stamps == {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")}
    (out / "fedplt-seed2" / "result.json").unlink()
    before = (out / "fedplt-seed2" / "model.safetensors").read_bytes()
    assert fedplt(*arguments).returncode == 0
    assert (out / "fedplt-seed2" / "result.json").is_file()
    assert (out / "fedplt-seed2" / "model.safetensors").read_bytes() == before


def test_a_run_that_fails_is_told_and_the_others_count(config, tmp_path):
    settings = load_config(config, ["training.learning_rate=0.1", "rounds=2"])
    told = []
    methods = {"good": {"name": "fedplt"}, "local": {"name": "fedpmt"}}
    broken = tmp_path / "out" / "local-seed1"
    broken.mkdir(parents=True)
    (broken / "what").write_text("not a run")
    with pytest.raises(RunError, match="no run of local has an evaluated round"):
        compare(settings, methods, [1], tmp_path / "out", on_run=lambda *run: told.append(run))
    assert ("good", 1, "done") in told
    assert any(label == "local" and "already exists" in text for label, _, text in told)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "fedplt,fedpm"], "Did you mean 'fedpmt'"),
        (["--seeds", "1,x"], "whole numbers"),
        (["--seeds", "1,1"], "all different"),
        (["--methods", "fedplt", "--option", "speed=3"], "METHOD.KEY=VALUE"),
        (["--methods", "fedplt", "--option", "fedpmt.x=3"], "fedpmt is not compared"),
        (["--methods", "fedplt", "--option", "fedplt.speed=3"], "no such option"),
    ],
)
def test_mistakes_are_said_before_anything_runs(fedplt, config, tmp_path, arguments, words):
    done = fedplt("compare", config, "--out", tmp_path / "out", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


def test_methods_are_listed(fedplt):
    done = fedplt("methods")
    from fedplt.methods import METHODS

    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == len(METHODS) + 2
    assert any(line.startswith("fedrolex") and "window" in line for line in lines)


def test_nothing_to_compare():
    with pytest.raises(RunError, match="at least one"):
        compare(load_config(Path("configs/fashion-mnist.toml")), {}, [1], Path("nowhere"))


def test_a_stopped_comparison_continues(config, tmp_path):
    """Ctrl-C (here: SIGINT to the process alone) saves what runs, and starts nothing more."""
    command = [sys.executable, "-m", "fedplt.cli", "compare", str(config), "--methods",
               "fedplt,fedavg", "--seeds", "1", "--processes", "1", "--out", str(tmp_path / "out"),
               "--set", "rounds=5000"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    first = tmp_path / "out" / "fedplt-seed1" / "rounds.jsonl"
    for _ in range(600):
        if first.is_file():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Start it again" in said
    assert (first.parent / "checkpoint.safetensors").is_file()
    assert not (tmp_path / "out" / "fedavg-seed1").exists()
