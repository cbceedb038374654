"""Built-in configurations: listed, copied, found by name; the output modes of every verb."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from fedplt.cli import app
from fedplt.cli.app import json_text
from fedplt.configs import builtin_configs, builtin_fleets
from fedplt.configuration.config_file import load_config
from fedplt.configuration.device_files import read_fleet


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_built_in_configuration_and_fleet_is_valid_from_anywhere(empty):
    for name in builtin_configs():
        assert load_config(name).name == name
    for name in builtin_fleets():
        assert read_fleet(builtin_fleets()[name]).devices
    assert read_fleet(load_config("fleet").fleet.devices).devices


def test_init_copies_a_configuration_with_its_comments(fedplt, empty):
    done = fedplt("init")
    assert done.returncode == 0, done.stderr
    copy = empty / "fashion-mnist.toml"
    assert copy.read_text() == builtin_configs()["fashion-mnist"].read_text()
    assert copy.read_text().count("#") > 10
    assert f"fedplt run {copy.name}" in done.stdout
    copy.write_text("mine")
    done = fedplt("init")
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert copy.read_text() == "mine"


def test_init_copies_the_files_that_a_configuration_names(fedplt, empty):
    done = fedplt("init", "fleet", "--out", "my folder", "--json")
    files = json.loads(done.stdout)["files"]
    assert files == ["my folder/fleet.toml", "my folder/fleets/kitchen.csv"]
    devices = load_config(files[0]).fleet.devices
    assert Path(devices).samefile(files[1])


def test_names_are_listed_and_mistakes_are_told(fedplt, empty):
    listed = fedplt("init", "--list").stdout
    for name in (*builtin_configs(), *builtin_fleets()):
        assert name in listed
    for arguments, expected in (
        (["plan", "fashon-mnist"], "Did you mean 'fashion-mnist'"),
        (["plan", "configs/fashion-mnist.toml"], "is called 'fashion-mnist'"),
        (["fleet", "kichen"], "Did you mean 'kitchen'"),
        (["init", "flet"], "Did you mean 'fleet'"),
    ):
        done = fedplt(*arguments)
        assert done.returncode == 2
        assert expected in done.stderr
    (empty / "fashion-mnist").mkdir()  # a folder of this name does not hide the configuration
    assert fedplt("plan", "fashion-mnist", "--quiet").returncode == 0
    (empty / "fleet").write_text("rounds = 'three'\n")  # but a file does
    assert "in fleet, line 1" in fedplt("plan", "fleet").stderr


def verbs(group: typer.Typer = app) -> dict[str, list[str]]:
    """All verbs and their options."""
    command = typer.main.get_command(group)
    found = {}
    for name, each in command.commands.items():
        for under, one in getattr(each, "commands", {"": each}).items():
            options = [option for parameter in one.params for option in parameter.opts]
            found[f"{name} {under}".strip()] = options
    return found


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_can_be_quiet_and_print_json(verb):
    assert {"--quiet", "-q", "--json"} <= set(verbs()[verb])


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["methods"], "fedplt"),
        (["fleet", "kitchen"], "devices"),
        (["plan", "fashion-mnist"], "ratios"),
        (["cut", "fcn"], "layers"),
        (["init", "--list"], "configurations"),
    ],
)
def test_quiet_prints_nothing_and_json_nothing_else(fedplt, empty, arguments, key):
    quiet = fedplt(*arguments, "-q")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert key in json.loads(fedplt(*arguments, "--json").stdout)
    assert fedplt(*arguments).stdout.strip()  # the modes do not stick


@pytest.mark.slow
def test_no_escape_codes_with_no_color_on_a_terminal(empty):
    """``python -m fedplt``, as users start it; without NO_COLOR the help is colored."""

    def on_a_terminal(*arguments: str, **variables: str) -> bytes:
        ours, theirs = pty.openpty()
        plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
        environment = plain | {"TERM": "xterm-256color"} | variables
        command = [sys.executable, "-m", "fedplt", *arguments]
        process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:  # the end of a terminal
            pass
        process.wait()
        os.close(ours)
        return said

    assert b"\x1b[" in on_a_terminal("--help")
    for arguments in (["--help"], ["run", "nonsense"], ["run"]):
        said = on_a_terminal(*arguments, NO_COLOR="1")
        assert said and b"\x1b" not in said


def test_shell_completion_offers_built_in_names_and_files(empty, monkeypatch, capsys):
    (empty / "fair.toml").touch()
    monkeypatch.setattr(sys, "argv", ["fedplt"])
    monkeypatch.setenv("_FEDPLT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "fedplt run fa")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        app(prog_name="fedplt")
    offered = capsys.readouterr().out.split()
    assert offered == ["fashion-mnist", "fashion-mnist-sampling", "fair.toml"]


def test_probe_into_a_file_gives_a_fleet(fedplt, empty):
    model = ["tests.support.tiny:model", "--shape", "6", "--passes", 1]
    name = 'Zoë\'s "box" \U0001f600'
    done = fedplt("probe", *model, "--name", name)
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(done.stdout)["device"][0]["name"] == name
    path = empty / "devices.toml"
    path.write_text(done.stdout)
    assert [device.name for device in read_fleet(path).devices] == [name]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["privacy", "fashion-mnist"], "--set privacy.clip=1.0"),
        (["init", "fleet", "--out", "a-file"], "error: a-file: File exists"),
    ],
)
def test_errors_need_no_page_and_have_no_numbers_of_the_system(fedplt, empty, arguments, words):
    (empty / "a-file").touch()
    done = fedplt(*arguments)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_json_has_no_nan():
    text = json_text({"score": float("nan"), "each": (1.5, float("inf")), "path": Path("runs")})
    assert json.loads(text) == {"score": None, "each": [1.5, None], "path": "runs"}
