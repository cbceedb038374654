"""Comparisons: same everything but the method; queries at equal cost; continued where stopped."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from fedplt import FedpltError, RunError, cli
from fedplt.comparison.results import (
    MEASURES,
    Comparison,
    MethodRuns,
    cost_to_reach,
    refusals,
    score_within,
)
from fedplt.comparison.run_comparison import compare
from fedplt.configuration.config_file import load_config
from fedplt.federation.job import job_from_config
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.run_folder.lock import take_lock
from fedplt.federation.run_folder.records import History, RoundRecord, Totals
from fedplt.federation.start import prepare_resume
from fedplt.methods import METHODS
from fedplt.methods.fedavg import FedAvg
from tests.support.image_jobs import TRAINS_SUBMODELS
from tests.support.processes import Forked

pytestmark = pytest.mark.usefixtures("forked_runs")


def history(accuracies, each):
    rounds = []
    for number, accuracy in enumerate(accuracies, start=1):
        total = Totals(number * each, number * each, number * each, float(number * each))
        rounds.append(RoundRecord(number, 1, 1.0, total, total, 0.1, accuracy, 0.5))
    return History(rounds)


def test_accuracy_at_a_budget_and_cost_to_an_accuracy():
    run = history([0.1, None, 0.5, 0.4], each=10)
    assert score_within(run, "bytes up", 30) == 0.5
    assert score_within(run, "bytes up", 25) == pytest.approx(0.4)  # 0.1 at 10, 0.5 at 30
    assert score_within(run, "bytes", 70) == pytest.approx(0.45)
    assert score_within(run, "bytes", 80) == 0.4
    assert score_within(run, "bytes", 81) is None  # it never spent that much
    assert score_within(run, "exact FLOPs", 9) is None
    assert cost_to_reach(run, "paper FLOPs", 0.45) == 30
    assert cost_to_reach(run, "bytes", 0.1) == 20
    assert cost_to_reach(run, "bytes", 0.6) is None


def test_the_cheapest_contestant_sets_the_budget():
    cheap = MethodRuns({"name": "a"}, {1: history([0.2, 0.3], 10)}, 0.1)
    dear = MethodRuns({"name": "b"}, {1: history([0.1, 0.2, 0.9], 15)}, 1.0)
    found = Comparison({"cheap": cheap, "dear": dear}, {})
    assert found.budgets("bytes up") == {1: 20}
    equal = found.at_equal("bytes up")
    assert equal["cheap"] == [0.3] and equal["dear"] == pytest.approx([0.1 + 0.1 / 3])
    text = found.text(0.3)
    assert "30.0" in text and "never" not in text
    assert "never" in found.text(0.95)


def test_every_seed_has_its_own_budget():
    """Splits differ, and so do costs: a mean budget is more than some run ever spent."""
    cheap = MethodRuns({"name": "a"}, {1: history([0.2, 0.3], 10), 2: history([0.2, 0.4], 30)}, 0.1)
    dear = MethodRuns({"name": "b"}, {1: history([0.1, 0.5], 20), 2: history([0.1, 0.7], 60)}, 1.0)
    found = Comparison({"cheap": cheap, "dear": dear}, {})
    assert found.budgets("bytes up") == {1: 20, 2: 60}
    equal = found.at_equal("bytes up")
    assert equal == {"cheap": [0.3, 0.4], "dear": [0.1, 0.1]}
    assert "bytes up <= 40 B" in found.text()


def test_a_run_that_ended_early_has_no_accuracy_at_equal_cost():
    whole = MethodRuns({"name": "a"}, {1: history([0.2, 0.3, 0.4], 10)}, 0.1)
    short = MethodRuns({"name": "b"}, {1: history([0.6], 10)}, 0.1, {1: "killed"})
    found = Comparison({"whole": whole, "short": short}, {})
    assert found.budgets("bytes") == {1: 60}
    assert found.at_equal("bytes") == {"whole": [0.4], "short": [None]}
    row = next(line for line in found.text().splitlines() if line.startswith("short"))
    assert row.startswith("short (ended early)") and row.count(" -") == len(found.measures) == 4


def test_refused_updates_are_told():
    rounds = list(history([0.2, 0.1, 0.1], 10).rounds)
    bad = {"3": "not finite", "4": "not finite"}
    rounds[1:] = [replace(record, rejected=bad) for record in rounds[1:]]
    assert refusals(history([0.2], 10)) == ""
    found = Comparison({"a": MethodRuns({"name": "a"}, {1: History(rounds)}, 0.1)}, {})
    words = "a, seed 1: 4 updates refused, rounds 2 to 3; the first, of client 3: not finite"
    assert words in found.text() and not found.problems
    run = found.to_json()["methods"]["a"]["runs"]["1"]
    assert [told["refused"] for told in run["rounds"]] == [0, 2, 2]


def test_the_last_score_stands_beside_the_mean_of_the_last_ten():
    run = MethodRuns({"name": "a"}, {1: history([0.2, 0.7], 10)}, 0.1)
    found = Comparison({"one": run}, {})
    row = next(line for line in found.text().splitlines() if line.startswith("one"))
    assert row.split()[2:4] == ["70.0", "45.0"]
    values = found.to_json()["methods"]["one"]
    assert values["runs"]["1"]["score_last"] == values["score_last_mean"] == 0.7
    assert values["runs"]["1"]["score_last_10"] == pytest.approx(0.45)


def test_simulated_time_is_a_cost_where_it_is_known():
    slow, fast = (
        [
            replace(r, total=replace(r.total, simulated_seconds=each * r.round))
            for r in history([0.2, 0.4, 0.6], 10).rounds
        ]
        for each in (100.0, 6.5)
    )
    runs = {label: History(rounds) for label, rounds in (("slow", slow), ("fast", fast))}
    found = Comparison({k: MethodRuns({"name": k}, {1: v}, 0.1) for k, v in runs.items()}, {})
    assert found.measures[-1] == "simulated time"
    assert found.budgets("simulated time") == {1: 19.5}
    assert found.at_equal("simulated time") == {"slow": [None], "fast": [0.6]}
    assert found.costs_to(0.4, "simulated time") == {"slow": [200.0], "fast": [13.0]}
    text = found.text(0.4)
    assert "simulated time <= 19.50 s" in text and "3:20" in text and "13.00 s" in text
    assert found.to_json(0.4)["methods"]["slow"]["cost_to_target"]["simulated time"] == [200.0]
    without = Comparison({"a": MethodRuns({"name": "a"}, {1: history([0.2], 10)}, 0.1)}, {})
    assert "simulated" not in without.text()


def test_a_comparison_prints_shortly_and_as_latex():
    two = MethodRuns({"name": "b"}, {1: history([0.2], 10), 2: history([0.4], 10)}, 0.1)
    found = Comparison({f"method_{i}": two for i in range(30)}, {})
    assert (
        repr(found).startswith("<Comparison by accuracy: method_0 30.0 %")
        and len(repr(found)) <= 300
    )
    assert found._repr_html_().startswith("<pre>accuracy in %")
    text = found.latex(0.3)
    assert text.count(r"\begin{tabular}") == 2 and text.count(r"method\_29 & ") == 2
    assert r"30.0 $\pm$ 14.1" in text and r"bytes up $\le$ 10 B" in text
    assert "+-" not in text and "<=" not in text


def test_one_seed_has_no_spread():
    one = MethodRuns({"name": "a"}, {1: history([0.2, 0.4], 10)}, 0.1)
    two = MethodRuns({"name": "b"}, {1: history([0.2], 10), 2: history([0.4], 10)}, 0.1)
    rows = Comparison({"one": one, "two": two}, {}).text().splitlines()
    assert "+-" not in next(row for row in rows if row.startswith("one"))
    assert "30.0 +- 14.1" in next(row for row in rows if row.startswith("two"))
    found = Comparison({"one": one, "two": two}, {}).to_json()["methods"]
    assert found["one"]["score_std"] is None
    assert found["two"]["score_std"] == pytest.approx(0.2 / 2**0.5)


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
