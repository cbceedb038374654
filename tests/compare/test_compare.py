"""Comparisons: same everything but the method; queries at equal cost; continued where stopped."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
import torch

from fedplt import FedpltError, RunError, cli
from fedplt.comparison import MEASURES
from fedplt.configuration.config_file import load_config, override
from fedplt.federation import load_history
from fedplt.federation.job import job_from_config
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.run_folder.lock import take_lock
from fedplt.federation.start import prepare_resume
from fedplt.methods import METHODS
from fedplt.methods.fedavg import FedAvg
from fedplt_compare.compare import compare
from tests.support.image_jobs import TRAINS_SUBMODELS
from tests.support.processes import Forked

pytestmark = pytest.mark.usefixtures("forked_runs")


@pytest.mark.slow
def test_from_the_command_line(fedplt, config, tmp_path):
    out = tmp_path / "comparison"
    arguments = (
        "compare", config, "--methods", "fedplt,heterofl", "--seeds", "1,2", "--out", out,
        "--option", "heterofl.scaler=none", "--target", "0.4",
    )  # fmt: skip
    done = fedplt(*arguments)
    assert done.returncode == 0, done.stderr
    assert "cost until 40 % accuracy" in done.stdout
    assert (out / "comparison.png").is_file()
    found = json.loads((out / "comparison.json").read_text())
    assert found["target"] == 0.4
    assert set(found["methods"]["heterofl"]["runs"]) == {"1", "2"}
    assert found["methods"]["heterofl"]["method"] == {"name": "heterofl", "scaler": "none"}
    assert set(found["budgets"]) == set(MEASURES) - {"simulated time"}
    runs = {label: RunFolder.open(out / f"{label}-seed1") for label in ("fedplt", "heterofl")}
    jobs = {label: job_from_config(run.config()) for label, run in runs.items()}
    assert jobs["fedplt"].data_fingerprint == jobs["heterofl"].data_fingerprint  # split included
    for one, other in zip(*(job.model.parameters() for job in jobs.values()), strict=True):
        assert torch.equal(one, other)

    # Its folder stands for its runs, with its labels.
    assert r"\midrule" in (out / "comparison.tex").read_text()
    (out / "report.html").unlink()
    assert fedplt("report", out).returncode == 0
    page = (out / "report.html").read_text()
    assert "Comparison: comparison" in page and "Differences to fedplt" in page
    for name, rows in (("rounds.csv", 4 * 3), ("comparison.csv", 2), ("comparison.tex", 2)):
        path = tmp_path / name
        done = fedplt("export", out, "--table", path.stem, "--out", path, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == rows
    lines = (tmp_path / "rounds.csv").read_text().splitlines()
    assert {line.split(",")[0] for line in lines[1:]} == {
        f"{label}-seed{seed}" for label in ("fedplt", "heterofl") for seed in (1, 2)
    }
    assert r"heterofl & 1, 2 & " in (tmp_path / "comparison.tex").read_text()
    assert fedplt("export", out, "--table", "comparison", "--out", "x.parquet").returncode == 2

    # Started again, it only reads; with a run cut short, it continues that one, to the same bits.
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")}
    assert fedplt(*arguments).returncode == 0
    assert stamps == {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")}
    (out / "fedplt-seed2" / "result.json").unlink()
    before = (out / "fedplt-seed2" / "model.safetensors").read_bytes()
    assert fedplt(*arguments).returncode == 0
    assert (out / "fedplt-seed2" / "result.json").is_file()
    assert (out / "fedplt-seed2" / "model.safetensors").read_bytes() == before


@pytest.mark.slow
def test_a_run_that_fails_is_told_and_the_others_count(fedplt, config, tmp_path):
    out = tmp_path / "out"
    for broken in ("fedplt-seed2", "fedpmt-seed1", "fedpmt-seed2"):
        (out / broken).mkdir(parents=True)
        (out / broken / "what").write_text("not a run")
    arguments = ("compare", config, "--out", out, "--set", "rounds=2")
    done = fedplt(*arguments, "--methods", "fedplt,fedpmt", "--seeds", "1,2")
    assert done.returncode == 1
    assert re.search(r"fedplt, seed 1: accuracy [0-9.]+ %, done\n", done.stderr)
    assert "fedplt, seed 2: ended early: " in done.stdout
    assert "fedpmt, seed 1: failed: " in done.stdout and "already exists" in done.stdout
    assert (out / "comparison.png").is_file()
    found = json.loads((out / "comparison.json").read_text())
    assert list(found["methods"]) == ["fedplt"]
    assert list(found["methods"]["fedplt"]["runs"]) == ["1"]
    assert list(found["methods"]["fedplt"]["failed"]) == ["2"]
    assert list(found["failed"]["fedpmt"]) == ["1", "2"]

    done = fedplt(*arguments, "--methods", "fedpmt", "--seeds", "1")  # nothing at all to report
    assert done.returncode == 2
    assert "no run has an evaluated round" in done.stderr and "already exists" in done.stderr


@pytest.mark.slow
def test_runs_of_another_configuration_are_refused(fedplt, config, tmp_path):
    """Else their results would be shown as those of this configuration."""
    out = tmp_path / "out"

    def files():
        return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def again(*arguments):
        return fedplt("compare", config, "--methods", "fedplt,fedavg", "--seeds", "1", "--out", out,
                      *arguments)  # fmt: skip

    assert again().returncode == 0
    before = files()
    done = again("--set", "training.learning_rate=0.2", "--set", "data.alpha=0.1")
    assert done.returncode == 2
    assert "training.learning_rate was 0.1, is 0.2" in done.stderr
    assert "data.alpha was 0.5, is 0.1" in done.stderr
    assert (
        "fedplt-seed1" in done.stderr and "fedavg-seed1" in done.stderr and "--out" in done.stderr
    )
    done = again("--option", "fedplt.rotate_every=1")
    assert done.returncode == 2
    assert "method.rotate_every" in done.stderr and "fedavg-seed1" not in done.stderr
    done = again("--set", "rounds=2")
    assert done.returncode == 2
    assert "rounds is 2, but 3 are done" in done.stderr
    assert files() == before

    assert again("--set", "rounds=4").returncode == 0  # more rounds are no contradiction
    assert RunFolder.open(out / "fedavg-seed1").rounds()[-1].round == 4


@pytest.mark.slow
def test_options_of_the_configuration_are_those_of_its_method(fedplt, config, tmp_path):
    config.write_text(
        config.read_text() + '[method]\nname = "fedplt"\nrotate_every = 2\nmasked_loss = true\n'
    )
    arguments = ("compare", config, "--seeds", "1", "--set", "rounds=1")
    out = tmp_path / "out"
    done = fedplt(*arguments, "--out", out, "--methods", "fedavg,fedplt",
                  "--option", "fedplt.rotate_every=1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "comparison.json").read_text())["methods"]
    wanted = {"name": "fedplt", "rotate_every": 1, "masked_loss": True}
    assert found["fedplt"]["method"] == wanted
    assert RunFolder.open(out / "fedplt-seed1").config().method == wanted
    assert found["fedavg"]["method"] == {"name": "fedavg"}

    done = fedplt(*arguments, "--out", tmp_path / "none", "--methods", "fedavg")
    assert done.returncode == 2
    assert "method.rotate_every, method.masked_loss" in done.stderr and "--option" in done.stderr
    assert not (tmp_path / "none").exists()


def test_methods_that_cannot_cut_the_model_are_named(fedplt, tmp_path):
    done = fedplt("compare", "vit-cifar10", "--methods", ",".join(METHODS), "--out", tmp_path / "o")
    assert done.returncode == 2
    assert f"{', '.join(TRAINS_SUBMODELS)} cannot be compared: " in done.stderr
    assert "--methods fedplt,fedavg,fedpmt,fedpart,fedbn" in done.stderr
    assert not (tmp_path / "o").exists()


def test_the_default_methods_and_that_of_the_configuration_are_compared(fedplt, tmp_path):
    changes = ("--set", "method.name=fjord", "--out", tmp_path / "out")
    done = fedplt("compare", "vit-cifar10", *changes)
    assert done.returncode == 2
    assert "heterofl, fedrolex, feddrop, fjord cannot be compared: " in done.stderr
    assert "--methods fedplt-recommended,fedplt,fedavg,fedpmt\n" in done.stderr


def test_a_mistake_of_the_configuration_is_said_once(fedplt, tmp_path):
    arguments = ("compare", "fashion-mnist", "--methods", "fedplt,fedavg")
    done = fedplt(*arguments, "--set", "model.name=resnet8", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.count("does not fit the data") == 1
    assert "--methods" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "fedplt,fedpm"], "Did you mean 'fedpmt'"),
        (["--seeds", "1,x"], "whole numbers"),
        (["--seeds", "1,1"], "all different"),
        (["--methods", ","], "at least one method"),
        (["--methods", "fedplt,tests.support.tiny:fedplt"], "have the same name"),
        (["--out", "README.md"], "README.md cannot be made"),
        (["--out", "README.md/below"], "README.md/below cannot be made"),
        (["--methods", "fedplt", "--option", "speed=3"], "METHOD.KEY=VALUE"),
        (["--methods", "fedplt", "--option", "fedpmt.x=3"], "fedpmt is not compared"),
        (["--methods", "fedplt", "--option", "fedplt.speed=3"], "no such option"),
        (
            ["--methods", "fedplt", "--option", "fedplt.name=heterofl"],
            "choose methods by --methods",
        ),
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": {}}, "at least one method"),
        ({"seeds": []}, "at least one method and one seed"),
        ({"seeds": [1, 1]}, "all different"),
        ({"seeds": [-1]}, "at least 0"),
        ({"methods": {"../up": {"name": "fedplt"}}}, "no slash"),
        ({"methods": {" ": {"name": "fedplt"}}}, "not empty"),
        ({"seeds": ["1"]}, "whole"),
        ({"methods": ["fedplt"]}, "give labels and settings"),
        ({"methods": {1: {"name": "fedplt"}}}, "label 1"),
        ({"methods": {"x" * 200: {"name": "fedplt"}}}, "at most 100"),
        ({"processes": 0}, "processes is 0"),
        ({"processes": "2"}, "processes is '2'"),
        ({"target": 70}, "from 0 to 1"),
    ],
)
def test_what_cannot_be_compared(changes, words, config, tmp_path):
    given = {"methods": {"a": {"name": "fedplt"}}, "seeds": [1], "out": tmp_path / "out", **changes}
    with pytest.raises(FedpltError, match=words):
        compare(load_config(config), **given)
    assert not (tmp_path / "out").exists()


def test_methods_of_this_process_alone_are_refused(config, tmp_path, monkeypatch):
    """Runs are processes of their own, which would not know it."""
    monkeypatch.setitem(METHODS, "mine", type("Mine", (FedAvg,), {"__module__": __name__}))
    with pytest.raises(FedpltError, match="'my_file:Mine'"):
        compare(load_config(config), {"mine": {"name": "mine"}}, [1], tmp_path / "out")


def test_one_comparison_at_a_time_in_a_folder(config, tmp_path):
    """Else they would take each other's logs and results away."""
    with (
        closing(take_lock(tmp_path)),
        pytest.raises(RunError, match="in use by process"),
    ):
        compare(load_config(config), {"a": {"name": "fedplt"}}, [1], tmp_path)
    assert not (tmp_path / "a-seed1.toml").exists()


@pytest.mark.slow
def test_the_shipped_models_are_compared(config, tmp_path):
    changed = override(load_config(config), ["server.average.decay=0.9", "rounds=3"])
    found = compare(changed, {"a": {"name": "fedplt"}}, [1], tmp_path / "out")
    history = load_history(tmp_path / "out" / "a-seed1")
    assert history.final_model == "average of models"
    losses = [record.average_loss for record in history.rounds]
    compared = found.methods["a"].histories[1].rounds
    assert [record.loss for record in compared] == losses  # this model's scores hardly differ
    assert [record.loss for record in history.rounds] != losses
    assert [record.score for record in compared] == history.of_average.scores


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_comparison_saves_its_runs(config, tmp_path, how):
    """A signal to the comparison alone saves what runs, and starts nothing more."""
    arguments = ["compare", str(config), "--methods", "fedplt,fedavg", "--seeds", "1",
                 "--processes", "1", "--out", str(tmp_path / "out"), "--set", "rounds=5000",
                 "--set", "checkpoint_every=5000"]  # fmt: skip
    log = (tmp_path / "log").open("w+")  # an orphan would keep a pipe open
    if how == signal.SIGINT:  # as users start it, and with runs as it starts them
        command = [sys.executable, "-m", "fedplt.cli", *arguments]
        process = subprocess.Popen(command, stderr=log, start_new_session=True)
    else:
        process = Forked(cli.main, arguments, stdout=log, stderr=log, start_new_session=True)
    first = tmp_path / "out" / "fedavg-seed1"  # the longer one
    _wait_until((first / "rounds.jsonl").is_file)
    process.send_signal(how)
    process.wait()
    if how != signal.SIGKILL:
        said = (tmp_path / "log").read_text()
        assert process.returncode == 130, said
        assert "Start it again" in said
        assert _is_free(first)
    else:
        _wait_until(lambda: _is_free(first))
    log.close()
    job, done = prepare_resume(RunFolder.open(first))
    assert 0 < done < job.config.rounds
    # A round that was stopped in its evaluation is saved, and evaluated when the run goes on.
    assert done - len(RunFolder.open(first).rounds()) in (0, 1)
    assert not (tmp_path / "out" / "fedplt-seed1").exists()


def _is_free(folder):
    run = RunFolder.open(folder)
    try:
        run.lock()
    except RunError:
        return False
    run.unlock()
    return True


def _wait_until(happened):
    for _ in range(600):
        if happened():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen within a minute")
