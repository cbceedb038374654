"""Configurations: every mistake gets one clear message that names the key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fedplt import ConfigError
from fedplt.builtin import builtin_configs
from fedplt.configuration.config import ClientsConfig, GroupConfig, RunConfig, TrainingConfig
from fedplt.configuration.config_errors import placing
from fedplt.configuration.config_file import (
    dump_config,
    flatten,
    load_config,
    override,
    parse_config,
)
from fedplt.models import build_model

SHIPPED = list(builtin_configs().values())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configurations_are_valid(path):
    config = load_config(path)
    assert RunConfig.model_validate(tomllib.loads(dump_config(config))) == config


def refused(text: str, tmp_path: Path, *overrides: str) -> str:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(path, overrides)
    return str(error.value)


GROUPS = """
[clients]
num_clients = 10

[[clients.groups]]
share = 0.5
ratio = 1.0

[[clients.groups]]
share = {share}
ratio = {ratio}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("raunds = 3", ["raunds", "Did you mean 'rounds'", "line 1"]),
        ("[training]\nlearning_rat = 1.0", ["training.learning_rat", "'learning_rate'", "line 2"]),
        ("[[clients.groups]]\nshare=1.0\nraito = 1.0", ["clients.groups.0.raito", "'ratio'"]),
        ('rounds = "ten"', ["rounds", "must be a whole number", "'ten'", "line 1"]),
        ("rounds = 0", ["rounds", "greater than or equal to 1", "0"]),
        (GROUPS.format(share=0.4, ratio=0.5), ["shares add up to 0.9", "remaining 0.1", "line 2"]),
        (GROUPS.format(share=0.6, ratio=0.5), ["shares add up to 1.1", "Lower some"]),
        (GROUPS.format(share=0.5, ratio=1.5), ["clients.groups.1.ratio", "1.5", "line 11"]),
        (GROUPS.format(share=0.5, ratio=0), ["clients.groups.1.ratio", "greater than 0"]),
        ("[[clients.groups]]\nratio = 1.0", ["either share or num_clients"]),
        ("[[clients.groups]]\nshare = 1.0", ["either ratio or layer_ratios"]),
        ("[[clients.groups]]\nnum_clients = 3\nratio = 1.0", ["add up to 3", "is 50"]),
        ("[training]\nlocal_epochs = 1\nlocal_steps = 2", ["either local_epochs or local_steps"]),
        ('[training]\nbatch_size = "all"', ["training.batch_size", "'all'"]),
        ('[training]\noptimizer = "sdg"', ["training.optimizer", "Did you mean 'sgd'"]),
        ('[training]\nschedule = "cosine"', ["training.schedule", "'1/t'"]),
        ('[data]\nsplit = "dirichelt"', ["data.split", "'dirichlet'"]),
        ('[data]\nsplit = "given"', ["split_file"]),
        ('[data]\nscaling = "sym"', ["data.scaling", "'symmetric'", "line 2"]),
        ('[data]\nname = "my:data"\nscaling = "unit"', ["scaling", "'my:data'", "built-in"]),
        ("[data]\nalpha = -1.0", ["data.alpha", "greater than 0"]),
        ("[method]\nratio = 1", ["method.name is missing"]),
        ("rounds = = 3", ["not valid TOML", "line 1"]),
        ('[sampling]\nname = "uniform"', ["sampling", "num_clients go together"]),
        (
            '[sampling]\nname = "uniform"\nnum_clients = 51',
            ["sampling.num_clients is 51, but there are 50 clients"],
        ),
        ('[sampling]\nname = "ocs"', ["sampling", "needs a budget", "in clients", "line 1"]),
        ('[sampling]\nname = "fedplt-ocs"', ["needs a budget", "in whole models"]),
        ('[sampling]\nname = "fedplt-osc"', ["sampling.name", "'fedplt-ocs'", "'fedplt-osc'"]),
        ('[sampling]\nname = "ocs"\nbudget = 51', ["budget is 51, but there are 50 clients"]),
        ('[sampling]\nname = "ocs"\nbudget = 0', ["sampling.budget", "greater than 0", "line 3"]),
        ("[sampling]\nbudget = 5.0", ["name = 'all' does not use budget", "fedplt-ocs"]),
        ('[sampling]\nnorms = "last"', ["name = 'all' does not use norms"]),
        ('[sampling]\nnorms = "old"', ["sampling.norms", "'fresh' or 'last'", "'old'"]),
        ("seed = -1", ["seed", "greater than or equal to 0"]),
    ],
)
def test_mistakes_are_named(text, expected, tmp_path):
    message = refused(text, tmp_path)
    for part in expected:
        assert part in message
    assert str(tmp_path / "run.toml") in message


def test_all_mistakes_at_once(tmp_path):
    message = refused('rounds = 0\nsed = 1\n[data]\nsplit = "x"', tmp_path)
    assert len(message.splitlines()) == 3


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_overrides(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(GROUPS.format(share=0.5, ratio=0.5))
    config = load_config(
        path,
        ["rounds=7", "training.batch_size=full", "clients.groups.1.ratio=0.25", "name=my run"],
    )
    assert config.rounds == 7
    assert config.training.batch_size == "full"
    assert config.clients.groups[1].ratio == 0.25
    assert config.name == "my run"
    assert "write key=value" in refused("", tmp_path, "rounds")
    assert "nothing at 'clients.groups.9.ratio'" in refused(
        GROUPS.format(share=0.5, ratio=0.5), tmp_path, "clients.groups.9.ratio=1"
    )
    assert override(config, ["seed=5"]).seed == 5


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("rounds = 0", ["rounds=-1"], "it is -1. (set by --set)"),
        ("rounds = 0", ["seed=1"], "run.toml, line 1)"),
        # Both places, where two values do not go together.
        (
            "[[clients.groups]]\nnum_clients = 3\nratio = 1.0",
            ["clients.num_clients=7"],
            "run.toml, line 1; clients.num_clients set by --set)",
        ),
        (
            '[sampling]\nname = "uniform"\nnum_clients = 9',
            ["clients.num_clients=7"],
            "sampling.num_clients in {folder}/run.toml, line 3; clients.num_clients set by --set)",
        ),
    ],
)
def test_the_place_of_a_wrong_value_is_named(text, overrides, expected, tmp_path):
    message = refused(text, tmp_path, *overrides)
    assert expected.format(folder=tmp_path) in message


def test_the_place_is_also_named_in_errors_found_later(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[model]\nname = "fnc"\n')
    for overrides, place in (([], f"(in {path}, line 2)"), (["model.name=fnc"], "(set by --set)")):
        with pytest.raises(ConfigError) as error, placing(path, overrides):
            build_model(load_config(path, overrides).model.name, {}, 0)
        assert str(error.value).endswith(place)
    with pytest.raises(ConfigError, match=r"^no key$"), placing(path):
        raise ConfigError("no key")


def test_an_empty_override_unsets(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("rounds = 3\n[training]\nlocal_steps = 5\n[model]\noptions = {depth = 2}")
    config = load_config(path, ["rounds=", "training.local_steps=", "model.options.depth="])
    assert (config.rounds, config.training.local_steps, config.model.options) == (60, None, {})
    assert load_config(path, ["training.momentum="]).training.momentum is None  # it was not set
    assert refused("", tmp_path, 'name=""').startswith("name: ''")  # set, to an empty text
    assert override(config, ["rounds="]) == config
    assert "Did you mean 'batch_size'" in refused("", tmp_path, "training.bach_size=")
    groups = GROUPS.format(share=0.5, ratio=0.5)
    assert "set the whole list" in refused(groups, tmp_path, "clients.groups.0=")


JARGON = re.compile(
    r"Input should|String should|valid (integer|string|number|dictionary|boolean)|\^\(|\\d|"
    r"pydantic|NoneType|\bstr\b|\bint\b|\bdict\b|list\[|literal\[|Error\b"
)


@pytest.mark.parametrize("wrong", ["'text'", "3.5", "-1", "true", "[]", "[[1]]", "{}", "{a = 1}"])
def test_no_message_shows_a_pattern_or_a_type_of_a_library(wrong):
    """Every key with values of all types: refused or not, in words about the configuration."""
    refusals = 0
    for key in [*flatten(RunConfig()), "fleet.devices", "fleet.dropout", "model.groups.a"]:
        try:
            override(RunConfig(), [f"{key}={wrong}"])
        except ConfigError as error:
            refusals += 1
            assert not JARGON.search(str(error)), str(error)
            assert "--set" in str(error)
    assert refusals > 20


def test_group_sizes_leave_nobody_out():
    shares = [GroupConfig(share=s, ratio=1.0) for s in (0.1, 0.3, 0.6)]
    assert ClientsConfig(num_clients=50, groups=shares).group_sizes() == [5, 15, 30]
    for number in range(5, 40):
        sizes = ClientsConfig(num_clients=number, groups=shares).group_sizes()
        assert sum(sizes) == number
    with pytest.raises(ValueError, match="is less than one client"):
        ClientsConfig(num_clients=2, groups=shares)


def test_schedules():
    constant = TrainingConfig()
    assert [constant.rate_factor(t) for t in (0, 9)] == [1, 1]
    falling = TrainingConfig(schedule="1/t")
    assert [falling.rate_factor(t) for t in (0, 1, 3)] == [1, 1 / 2, 1 / 4]
    later = TrainingConfig(schedule="constant-then-1/t", constant_rounds=10, decay_rounds=5.0)
    assert [later.rate_factor(t) for t in (0, 10, 15)] == [1, 1, 1 / 2]


def test_parse_from_python():
    with pytest.raises(ConfigError, match="rounds"):
        parse_config({"rounds": 0})


def test_words_that_are_no_files_stay(tmp_path):
    (tmp_path / "run.toml").write_text(
        '[data]\nname = "nodes"\n[fleet]\ndevices = "nodes"\n[engine]\nname = "flower"\n'
        '[model]\nweights = "start.safetensors"\n'
    )
    config = load_config(tmp_path / "run.toml")
    assert config.fleet.devices == "nodes"
    assert config.model.weights == str(tmp_path / "start.safetensors")  # beside the file
    assert config.code == str(tmp_path)
