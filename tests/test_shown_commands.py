"""Every `fedplt` command that the documents show is run, with little data and few rounds."""

from __future__ import annotations

import re
import shlex
import sys

import pytest
import torch
from typer.testing import CliRunner

from fedplt.cli import app
from fedplt.configs import find_config, find_fleet
from fedplt.data import TensorSamples, TrainingData
from fedplt.federation import model_and_data
from tests.support.shown import ROOT, blocks, command_lines

COMMANDS = [line for line in command_lines() if line.startswith("fedplt ")]
RUN_ELSEWHERE = {
    r"houses": "tests/test_own_data_page.py",
    r"fedplt advise devices.csv": "tests/compare",
    r"\bmine\b": "tests/test_first_fleet_page.py",
    r"fedplt deploy check|fl/server/run|fl/run\.toml": "tests/flower",
    r"fedplt data get": "tests/data (no network here)",
    r"track:log": "tests/api/test_tracking.py",
    r"--host fl\.example\.org": "tests/flower/test_cli.py",
    r"fedplt watch|fedplt report runs/fedplt-seed1|\.parquet": "tests/report, tests/cli",
}
SMALL = "--set rounds=1 --set engine.workers=1 --set evaluation.every=1"
ONE_STEP = "--set training.local_epochs= --set training.local_steps=1"
FEW_EXAMPLES = "--set training.batch_size=4 --set engine.check=false"
FEW_UNITS = "--set 'model.options.hidden=[16, 8]'"
ADVISED = FEW_UNITS.replace("16, 8", "64, 16")  # with fewer, no strategy differs from another
LITTLE = {
    "run": SMALL,
    "compare": f"{SMALL} --seeds 1 --processes 1 --set clients.num_clients=10",
    "advise": f"{SMALL} --seeds 1 --processes 1 {ONE_STEP} {FEW_EXAMPLES} {ADVISED}",
    "resume": "--set rounds=2",
    "probe": "--passes 1 --batch-size 2",
}
"""Options that are added, so that a command takes a second at most."""
SHARES = 2
"""Tests that run in parallel; each begins with the run whose folder other commands read."""
OWN_CODE = {
    "onelayer": "add_method.md:1",
    "turns": "add_sampler.md:1",
    "nearest": "add_rule.md:1",
}
"""Modules that pages tell their readers to write."""
MY_DATA = """
import torch

def load():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 1, 28, 28, generator=generator), torch.arange(20) % 10
"""


def images(name, *, scaling=None, progress=None):
    generator = torch.Generator().manual_seed(0)

    def some(number):
        inputs = torch.randn(number, 1, 28, 28, generator=generator)
        return TensorSamples(inputs, torch.arange(number) % 10)

    return TrainingData(some(1500), some(50), some(50))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What the pages tell their readers to have."""
    shown = dict(blocks("python")) | dict(blocks("toml"))
    for module, block in OWN_CODE.items():
        (tmp_path / f"{module}.py").write_text(shown[block])
    (tmp_path / "my_data.py").write_text(MY_DATA)
    (tmp_path / "nodes.csv").write_text("name,ratio\nn1,1.0\nn2,0.5\n")
    (tmp_path / "run.toml").write_text(shown["privacy.md:1"])
    monkeypatch.setattr(model_and_data, "load_data_set", images)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("my_data", *OWN_CODE):  # another test's
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def small(words: list[str], number: int) -> list[str]:
    added = shlex.split(LITTLE.get(words[0], ""))
    if words[0] in ("run", "compare") and "hidden" not in " ".join(words):
        added += shlex.split(FEW_UNITS)
    if words[0] == "run" and number:
        added += ["--out", f"runs/{number}", "--set", "engine.check=false"]
    if words[0] == "compare":
        added += ["--out", f"comparisons/{number}"]
        if "--methods" not in words:
            added += ["--methods", "fedavg,feddrop"]
    return [*words, *added]


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_shown_commands_run(share, fedplt, folder, forked_runs):
    lines = [line for line in COMMANDS if not elsewhere(line)]
    lines.sort(key=lambda line: not line.startswith("fedplt run "))  # others read its folder
    wrong = []
    for number, line in enumerate([lines[0], *lines[1 + share :: SHARES]]):
        words = shlex.split(line.split(" > ")[0])[1:]
        done = fedplt(*small(words, number))
        if done.returncode:
            wrong.append(f"{line}\n{done.stdout[-500:]}{done.stderr}")
        if number == 0:
            (folder / "my-run").symlink_to(folder / "runs" / "fashion-mnist-seed1")
    assert not wrong, "\n\n".join(wrong)
    code = next(line for line in command_lines() if line.startswith("python -c"))
    exec(shlex.split(code)[2], {})  # noqa: S102 (our own page)


def elsewhere(line: str) -> bool:
    return any(re.search(pattern, line) for pattern in RUN_ELSEWHERE)


@pytest.mark.parametrize("command", [line for line in COMMANDS if elsewhere(line)])
def test_commands_that_are_run_elsewhere_exist(command):
    verbs, words = [], shlex.split(command)[1:]
    while words and not words[0].startswith("-") and len(verbs) < 2:
        verbs.append(words.pop(0))
    known = [verbs, verbs[:1]]
    done = [CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "200"}) for names in known]
    found = next(result for result in done if result.exit_code == 0)
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in found.output, command


def test_shown_commands_of_the_reproduction_exist():
    """``tests/reproduction`` runs them."""
    from reproduction.command import app as reproduction

    lines = [line for line in command_lines() if line.startswith("python -m reproduction")]
    assert lines
    for line in lines:
        words = shlex.split(line)[3:]
        shown = [*words[:1], "--help"]
        found = CliRunner().invoke(reproduction, shown, env={"COLUMNS": "200"})
        assert found.exit_code == 0, line
        for word in words:
            if word.startswith("--"):
                assert word.split("=")[0] in found.output, line


def test_shown_configurations_fleets_and_targets_exist():
    for command in COMMANDS:
        known = {"fleet": find_fleet, **dict.fromkeys(("plan", "run", "compare"), find_config)}
        verb, *words = shlex.split(command)[1:]
        if verb in known and "." not in words[0]:
            assert known[verb](words[0]).is_file(), command
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in command_lines():
        if line.startswith("make "):
            assert line.split()[1] in targets, line


def test_the_first_page_shows_every_verb():
    text = (ROOT / "docs" / "index.md").read_text()
    verbs = [command.name or command.callback.__name__ for command in app.registered_commands]
    verbs += [group.name for group in app.registered_groups]
    assert not [verb for verb in verbs if f"\nfedplt {verb} " not in text]


def test_nothing_else_is_shown_than_commands_somebody_knows():
    """Others are run by tests/flower (deployments) and tests/test_examples.py."""
    others = {line.split()[0] for line in command_lines()} - {"fedplt", "make", "pip"}
    names = ("register-nodes", "start-run", "superexec", "superlink")
    scripts = {f"fl/server/{name}.sh" for name in names}
    assert others <= scripts | {"python", ".venv/bin/python", "flwr", "ssh", "grep", "for"}
