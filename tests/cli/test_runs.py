"""The command line as people use it; killed runs in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import pytest
from safetensors.torch import load_file

from fedplt import cli, load_history
from fedplt.federation import RunFolder
from fedplt.federation.loop import Federation
from tests.support.pictures import svg_texts
from tests.support.processes import Forked
from tests.support.tiny import CONFIG


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def start(tmp_path):
    """Start a command in a process of its own, as the leader of a group of processes."""
    started = []

    def start(*arguments: object) -> Forked:
        with (tmp_path / "output").open("w") as out, (tmp_path / "errors").open("w") as errors:
            started.append(
                Forked(cli.main, arguments, stdout=out, stderr=errors, start_new_session=True)
            )
        return started[-1]

    yield start
    for process in started:
        process.send_signal(signal.SIGKILL)
        with process:
            pass


def test_plan(fedplt, config, tmp_path):
    done = fedplt("plan", config, "--picture", tmp_path / "plan.svg")
    assert done.returncode == 0, done.stderr
    assert "clients per sub-layer" in done.stdout and "memory of updates" not in done.stdout
    done = fedplt("plan", config, "--set", "server.memory.precision=int8")
    assert "memory of updates: up to " in done.stdout
    assert {"0 (56)", "2 (27)", "ratio 1", "ratio 0.3"} <= set(svg_texts(tmp_path / "plan.svg"))
    done = fedplt("plan", config, "--set", "model.name=resnet8")
    assert done.returncode == 2
    assert "does not fit the data" in done.stderr
    plan = json.loads(fedplt("plan", config, "--json").stdout)
    assert len(plan["ratios"]) == 5
    done = fedplt("plan", config, "--picture", tmp_path / "plan.bmp")
    assert done.returncode == 2
    assert ".png, .svg or .pdf" in done.stderr


@pytest.mark.slow
def test_run_then_report(fedplt, config, tmp_path):
    folder = tmp_path / "run"
    done = fedplt("run", config, "--out", folder, "--seed", 3, "--set", "rounds=3")
    assert done.returncode == 0, done.stderr
    assert "round 3/3  accuracy" in done.stdout
    assert "report:" in done.stdout
    assert re.search(r"[\d.]+ % in the last evaluation, [\d.]+ % mean of the last 3", done.stdout)
    result, history = json.loads((folder / "result.json").read_text()), load_history(folder)
    assert result["score_last"] == history.last_score == history.scores[-1]
    assert result["score_last_10"] == history.final_score() == pytest.approx(fmean(history.scores))
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {
        "config.toml", "plan.json", "metric.json", "rounds.jsonl", "checkpoint.safetensors",
        "checkpoint.previous.safetensors", "sessions.json",
        "model.safetensors", "result.json", "report.html",
    }  # fmt: skip
    page = (folder / "report.html").read_text()
    assert 'id="curves"' in page and "plotly.js" in page
    assert "uploaded" in page
    (folder / "report.html").unlink()
    assert fedplt("report", folder).returncode == 0
    assert (folder / "report.html").exists()
    again = fedplt("run", config, "--out", folder)
    assert again.returncode == 2
    assert "fedplt resume" in again.stderr
    assert (folder / "model.safetensors").exists()


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(fedplt, start, config, tmp_path):
    slow = ["--set", "rounds=40", "--set", "checkpoint_every=3"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert fedplt("run", config, "--out", whole, *slow).returncode == 0
    process = start("run", config, "--out", broken, *slow)
    wait_for_rounds(broken, 5, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "model.safetensors").exists()
    done = fedplt("resume", broken)
    assert done.returncode == 0, done.stderr
    one, two = (load_file(folder / "model.safetensors") for folder in (whole, broken))
    assert all((one[name] == two[name]).all() for name in one)
    assert numbers(whole) == numbers(broken)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_saves_and_stops(fedplt, start, config, tmp_path, number):
    """As a terminal sends it for Ctrl-C, and a scheduler or a container when time is up."""
    folder, errors = tmp_path / "run", tmp_path / "errors"
    process = start("run", config, "--out", folder, "--set", "rounds=100000")
    wait_for_rounds(folder, 3, process)
    os.killpg(process.pid, number)
    code, stderr = process.wait(), errors.read_text()
    assert code == 130, stderr
    assert f"stopped and saved. Continue with: fedplt resume {folder}" in stderr
    assert "Traceback" not in stderr
    assert "died" not in stderr
    done = fedplt("resume", folder, "--set", f"rounds={len(numbers(folder)) + 1}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_starts_again(
    fedplt, start, config, tmp_path, monkeypatch
):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    with monkeypatch.context() as patched:
        patched.setattr(Federation, "start", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        killed = start("run", config, "--out", folder)
    assert killed.wait() == -signal.SIGKILL
    assert {path.name for path in folder.iterdir()} == {
        "config.toml", "plan.json", "metric.json", ".lock",
    }  # fmt: skip
    done = fedplt("resume", folder)
    assert done.returncode == 2
    advice = f"fedplt run {folder / 'config.toml'} --out {folder}"
    assert f"never began: it ended before its first checkpoint. Start it again with '{advice}'" in (
        done.stderr
    )
    done = fedplt(*advice.split()[1:])
    assert done.returncode == 0, done.stderr
    assert fedplt("run", config, "--out", whole).returncode == 0
    assert numbers(folder) == numbers(whole)


def wait_for_rounds(folder: Path, number: int, process: Forked) -> None:
    deadline = time.monotonic() + 60
    while len(numbers(folder)) < number:
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def numbers(folder: Path) -> list[dict]:
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [{**json.loads(line), "seconds": 0, "seal": ""} for line in lines if line.endswith("}")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "clients.num_clients=1000"], "clients.num_clients"),
        (["--set", "training.learning_rate=-1"], "training.learning_rate"),
        (["--set", "data.name=fashion"], "Did you mean 'fashion-mnist'"),
        (["--set", "model.name=fnc"], "Did you mean 'fcn'"),
        (["--set", "model.options={wdth = 3}"], "It takes"),
        (["--set", "method.name=scaffold"], "Known: fedavg, fedbn"),
        (["--set", "data.split=given", "--set", "data.split_file=no.json"], "data.split_file"),
        (["--set", "clients.groups.0.ratio=2"], "clients.groups.0.ratio"),
        (["--set", "rounds=abc"], "(set by --set)"),
        (["--set", "model.name=math:pi"], "name a function"),
        (["--set", "data.name=math:pi"], "name a function"),
        (["--set", "model.name=.x:y"], "cannot be imported"),
        (["--set", "data.name=no_such:abort", "--set", "model.name=fcn"], "cannot be imported"),
        (["--set", "data.name=os:getcwd"], "part of Python itself"),
        (
            ["--set", "data.name=tests.support.tiny:fails"],
            "tests.support.tiny:fails' failed: OSError",
        ),
        (["--set", "clients.num_clients=1"], "is less than one client"),
        (["--set", "model.name=torch.nn:Linear"], "It takes"),
        (["--set", "engine.device=cuda:9"], "engine.device"),
        (["--set", "training.learning_rate=1e30"], "every client's update was refused"),
        (
            ["--set", "training.learning_rate=1e30", "--set", "method.name=feddrop"],
            "The scaler (method.scaler)",
        ),
    ],
)
def test_mistakes_end_with_one_message_and_code_2(fedplt, config, tmp_path, arguments, expected):
    done = fedplt("run", config, "--out", tmp_path / "run", *arguments)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_diverged_run_is_replaced(fedplt, config, tmp_path):
    run = ["run", config, "--out", tmp_path / "run", "--quiet", "--set", "rounds=2"]
    diverged = fedplt(*run, "--set", "training.learning_rate=1e30")
    assert diverged.returncode == 2 and "refused" in diverged.stderr
    assert "--overwrite" in fedplt(*run).stderr
    wrong = fedplt(*run, "--overwrite", "--set", "clients.num_clients=7000")
    assert wrong.returncode == 2 and RunFolder.has_begun(tmp_path / "run")  # it was not deleted
    assert fedplt(*run, "--overwrite").returncode == 0
    assert len(RunFolder.open(tmp_path / "run").history().rounds) == 2


def test_resume_refuses_a_changed_configuration(fedplt, config, tmp_path):
    folder = tmp_path / "run"
    assert fedplt("run", config, "--out", folder, "--set", "rounds=1").returncode == 0
    done = fedplt("resume", folder, "--set", "training.batch_size=8")
    assert done.returncode == 2
    assert "training.batch_size was 16, is 8" in done.stderr
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("learning_rate = 0.1", "learning_rate = 0.2"))
    done = fedplt("resume", folder)
    assert done.returncode == 2
    assert "config.toml is not what fedplt wrote" in done.stderr
    (folder / "config.toml").unlink()
    done = fedplt("resume", folder)
    assert "was missing: written again" in done.stderr
    assert (folder / "config.toml").read_text() == text


@pytest.mark.slow
def test_a_run_continued_forgets_its_old_end(fedplt, start, config, tmp_path):
    folder = tmp_path / "run"
    assert fedplt("run", config, "--out", folder, "--set", "rounds=1").returncode == 0
    process = start("resume", folder, "--set", "rounds=100000")
    wait_for_rounds(folder, 4, process)
    process.terminate()
    assert process.wait() == 130
    assert not (folder / "model.safetensors").exists()
    assert fedplt("report", folder).returncode == 0
    assert "on the test set" not in (folder / "report.html").read_text()
    assert "done already" in fedplt("resume", folder, "--set", "rounds=1").stderr


@pytest.mark.slow
def test_names_with_brackets(fedplt, config, tmp_path):
    done = fedplt("run", config, "--out", tmp_path / "a[b]c", "--set", "rounds=1")
    assert "a[b]c/model.safetensors" in done.stdout


def test_what_is_no_run(fedplt, tmp_path):
    for verb in ("resume", "report"):
        done = fedplt(verb, tmp_path)
        assert done.returncode == 2
        assert "not a run folder" in done.stderr


@pytest.mark.slow
def test_as_a_program():
    """``python -m fedplt.cli``, as users start it."""
    command = [sys.executable, "-W", "error", "-m", "fedplt.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fedplt 0.") and not done.stderr


def test_help_and_version(fedplt):
    done = fedplt("--help")
    for verb in ("plan", "run", "resume", "report", "data"):
        assert verb in done.stdout
    assert fedplt("--version").stdout.startswith("fedplt 0.")
    assert fedplt("data", "get", "nonsense").returncode == 2
