"""``[work]`` and ``[target]`` of a device file: one vocabulary, and what is said about mistakes."""

from __future__ import annotations

import inspect

import pytest
import typer

from fedplt import ConfigError, FleetError, plan_fleet
from fedplt.cli import app
from fedplt.configuration.config_file import parse_config
from fedplt.configuration.device_files import read_fleet
from fedplt.configuration.fleet_config import FleetConfig
from fedplt.fleet import FleetTarget

DEVICE = '[[device]]\nname = "a"\nspeed = "1 GFLOP/s"\ndown = "9 Mbit/s"\nup = "9 Mbit/s"\n'


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "fleet.toml"
        path.write_text(DEVICE + text)
        return read_fleet(path)

    return read


def test_the_same_keys_everywhere():
    keys = set(FleetTarget.model_fields)
    assert keys < set(FleetConfig.model_fields)
    assert keys < set(inspect.signature(plan_fleet).parameters)
    command = typer.main.get_command(app).commands["fleet"]
    assert keys < {parameter.name for parameter in command.params}
    options = {option for parameter in command.params for option in parameter.opts}
    assert {f"--{key.replace('_', '-')}" for key in keys} < options


def test_settings_are_read(read):
    file = read('[work]\nmodel = "cnn"\nbatch_size = 8\n[target]\ndeadline_seconds = 60\n')
    assert (file.work.model, file.work.batch_size, file.work.local_steps) == ("cnn", 8, 16)
    assert (file.target.deadline_seconds, file.target.percentile) == (60, None)
    assert read("").target == FleetTarget()


@pytest.mark.parametrize(
    ("line", "key", "shown"),
    [
        ('modle = "fcn"', "modle", "'model'"),
        ("local_steps = 0", "local_steps", "it is 0"),
        ("num_parameters = 5", "num_parameters", "cost = 'paper'"),
        ('num_parameters = 5\ncost = "paper"\nmodel = "cnn"', "model", "num_parameters"),
        ('cost = "papr"', "cost", "'exact' or 'paper', but it is 'papr'"),
        ('shape = "3x3"', "shape", "it is '3x3'. Write it like [3, 32, 32]"),
        ("shape = [3, true]", "shape.1", "it is true. Write it like [3, 32, 32]"),
        ("model = 3", "model", "it is 3. Write it like 'fcn'"),
        ("options = 3", "options", "it is 3. Write it like {'num_inputs': 3072}"),
        ("local_steps = true", "local_steps", "a whole number, but it is true"),
        ('cost = "paper"\nbytes_per_parameter = -1', "bytes_per_parameter", "it is -1"),
    ],
)
def test_wrong_work_is_refused(read, line, key, shown):
    with pytest.raises(FleetError) as caught:
        read(f"[work]\n{line}\n")
    assert caught.value.key == f"work.{key}"
    assert shown in caught.value.message
    assert "fleet.toml, line" in caught.value.place


@pytest.mark.parametrize(
    ("line", "key", "shown"),
    [
        ("deadline_seconds = -1", "deadline_seconds", "it is -1"),
        ('deadline_seconds = "5"', "deadline_seconds", "a number, but it is '5'"),
        ("deadline_seconds = 3\npercentile = 5", "deadline_seconds", "percentile"),
        ("percentile = 101", "percentile", "100, but it is 101"),
        ("min_ratio = 0", "min_ratio", "it is 0"),
        ('may_freeze = "yes"', "may_freeze", "true or false, but it is 'yes'"),
        ("seconds = 3", "seconds", "'deadline_seconds'"),
        ('rule = "fastest"', "rule", "Known: deadline_seconds, may_"),
    ],
)
def test_wrong_targets_are_refused(read, line, key, shown):
    with pytest.raises(FleetError) as caught:
        read(f"[target]\n{line}\n")
    assert caught.value.key == f"target.{key}"
    assert shown in caught.value.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("target_seconds", "deadline_seconds"),
        ("round_deadline", "Known: announced, availability, deadline_seconds, devices"),
    ],
)
def test_keys_of_before_are_unknown(old, new):
    with pytest.raises(ConfigError, match=new) as caught:
        parse_config({"fleet": {"devices": "x.csv", old: 3.0}})
    assert caught.value.key == f"fleet.{old}"


def test_sections_that_are_no_tables():
    with pytest.raises(ConfigError, match=r"\[training\], not training = 3") as caught:
        parse_config({"training": 3})
    assert caught.value.key == "training"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"deadline_seconds": 0.0}, "deadline_seconds: .* 0"),
        ({"deadline_seconds": float("nan")}, "deadline_seconds: .* nan"),
        ({"percentile": -1.0}, "percentile: .* -1"),
        ({"deadline_seconds": 1.0, "percentile": 5.0}, "deadline_seconds.*percentile"),
        ({"min_ratio": 2.0}, "min_ratio: .* 2"),
    ],
)
def test_python_callers_get_the_same_checks(read, settings, expected):
    from fedplt.fleet import PaperWorkload

    with pytest.raises(FleetError, match=expected):
        plan_fleet(read("").devices, PaperWorkload(1000, 1), **settings)
