"""Configurations: every mistake gets one clear message that names the key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fedplt import ConfigError
from fedplt.configs import builtin_configs
from fedplt.configuration.config import ClientsConfig, GroupConfig, RunConfig, TrainingConfig
from fedplt.configuration.config_file import (
    dump_config,
    flatten,
    load_config,
    override,
    parse_config,
    placing,
)
from fedplt.models import build_model

SHIPPED = list(builtin_configs().values())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configurations_are_valid(path):
    config = load_config(path)
    assert RunConfig.model_validate(tomllib.loads(dump_config(config))) == config


def refused(text: str, tmp_path: Path, *overrides: str) -> ConfigError:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(path, overrides)
    return error.value


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
    ("text", "key", "line", "shown"),
    [
        ("raunds = 3", "raunds", 1, ["'rounds'"]),
        ("[training]\nlearning_rat = 1.0", "training.learning_rat", 2, ["'learning_rate'"]),
        ("[[clients.groups]]\nshare=1.0\nraito = 1.0", "clients.groups.0.raito", 3, ["'ratio'"]),
        ('rounds = "ten"', "rounds", 1, ["whole number", "'ten'"]),
        ("rounds = 0", "rounds", 1, ["1", "0"]),
        (GROUPS.format(share=0.4, ratio=0.5), "clients.groups", 5, ["0.9", "0.1"]),
        (GROUPS.format(share=0.6, ratio=0.5), "clients.groups", 5, ["1.1"]),
        (GROUPS.format(share=0.5, ratio=1.5), "clients.groups.1.ratio", 11, ["1.5"]),
        (GROUPS.format(share=0.5, ratio=0), "clients.groups.1.ratio", 11, ["0"]),
        ("[[clients.groups]]\nratio = 1.0", "clients.groups.0.share", 1, ["num_clients"]),
        ("[[clients.groups]]\nshare = 1.0", "clients.groups.0.ratio", 1, ["layer_ratios"]),
        ("[[clients.groups]]\nnum_clients = 3\nratio = 1.0", "clients.groups", 1, ["3", "50"]),
        ("[training]\nlocal_epochs = 1\nlocal_steps = 2", "training.local_epochs", 2, ["line 3"]),
        ('[training]\nbatch_size = "all"', "training.batch_size", 2, ["'all'", "'full'"]),
        ('[training]\noptimizer = "sdg"', "training.optimizer", 2, ["'sdg'", "'sgd'"]),
        ('[training]\nschedule = "cosin"', "training.schedule", 2, ["'cosin'", "'cosine'"]),
        ('[data]\nsplit = "dirichelt"', "data.split", 2, ["'dirichelt'", "'dirichlet'"]),
        ('[data]\nsplit = "given"', "data.split_file", 1, ["'given'", "data.split in"]),
        ('[data]\nscaling = "sym"', "data.scaling", 2, ["'sym'", "'symmetric'"]),
        (
            '[data]\nname = "my:data"\nscaling = "unit"',
            "data.scaling",
            3,
            ["'my:data'", "built-in"],
        ),
        ("[data]\nalpha = -1.0", "data.alpha", 2, ["-1.0", "0"]),
        ("[method]\nratio = 1", "method.name", 1, ["'fedplt'"]),
        ('[sampling]\nname = "uniform"', "sampling.num_clients", 1, ["'uniform'"]),
        (
            '[sampling]\nname = "uniform"\nnum_clients = 51',
            "sampling.num_clients",
            3,
            ["51", "50 clients", "clients.num_clients"],
        ),
        ('[sampling]\nname = "ocs"', "sampling.budget", 1, ["'ocs'", "in clients"]),
        ('[sampling]\nname = "fedplt-ocs"', "sampling.budget", 1, ["in whole models"]),
        ('[sampling]\nname = "fedplt-osc"', "sampling.name", 2, ["'fedplt-ocs'", "'fedplt-osc'"]),
        ('[sampling]\nname = "ocs"\nbudget = 51', "sampling.budget", 3, ["51", "50 clients"]),
        ('[sampling]\nname = "ocs"\nbudget = 0', "sampling.budget", 3, ["greater than 0"]),
        ("[sampling]\nbudget = 5.0", "sampling.budget", 2, ["'all'", "fedplt-ocs"]),
        ('[sampling]\nnorms = "last"', "sampling.norms", 2, ["'all'"]),
        ('[sampling]\nnorms = "old"', "sampling.norms", 2, ["'fresh' or 'last'", "'old'"]),
        ("[sampling]\n[sampling.options]\nn = 3", "sampling.options.n", 3, ["all"]),
        ("seed = -1", "seed", 1, ["-1", "0"]),
    ],
)
def test_mistakes_are_named(text, key, line, shown, tmp_path):
    error = refused(text, tmp_path)
    assert error.key == key
    assert f"in {tmp_path / 'run.toml'}, line {line}" in error.place
    for part in shown:
        assert part in str(error)


def test_invalid_toml_has_a_line(tmp_path):
    message = str(refused("rounds = = 3", tmp_path))
    assert str(tmp_path / "run.toml") in message
    assert "line 1" in message


def test_all_mistakes_at_once(tmp_path):
    error = refused('rounds = 0\nsed = 1\n[data]\nsplit = "x"', tmp_path)
    assert [line.partition(":")[0] for line in str(error).splitlines()] == [
        "rounds",
        "data.split",
        "sed",
    ]


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            load_config(path)


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
    assert "--set rounds: write key=value" in str(refused("", tmp_path, "rounds"))
    groups = GROUPS.format(share=0.5, ratio=0.5)
    assert "clients.groups.9.ratio" in str(refused(groups, tmp_path, "clients.groups.9.ratio=1"))
    assert override(config, ["seed=5"]).seed == 5


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("rounds = 0", ["rounds=-1"], "set by --set"),
        ("rounds = 0", ["seed=1"], "in {folder}/run.toml, line 1"),
        # Both places, where two values do not go together.
        (
            "[[clients.groups]]\nnum_clients = 3\nratio = 1.0",
            ["clients.num_clients=7"],
            "clients.groups in {folder}/run.toml, line 1; clients.num_clients set by --set",
        ),
        (
            '[sampling]\nname = "uniform"\nnum_clients = 9',
            ["clients.num_clients=7"],
            "sampling.num_clients in {folder}/run.toml, line 3; clients.num_clients set by --set",
        ),
    ],
)
def test_the_place_of_a_wrong_value_is_named(text, overrides, expected, tmp_path):
    assert refused(text, tmp_path, *overrides).place == expected.format(folder=tmp_path)


def test_the_place_is_also_named_in_errors_found_later(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[model]\nname = "fnc"\n')
    for overrides, place in (([], f"in {path}, line 2"), (["model.name=fnc"], "set by --set")):
        with pytest.raises(ConfigError) as error, placing(path, overrides):
            build_model(load_config(path, overrides).model.name, {}, 0)
        assert (error.value.key, error.value.place) == ("model.name", place)
        assert str(error.value).endswith(f" ({place})")
    for other in (ConfigError("no key"), ConfigError("no setting", key="--shape")):
        with pytest.raises(ConfigError) as error, placing(path):
            raise other
        assert error.value.place == ""


def test_an_empty_override_unsets(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("rounds = 3\n[training]\nlocal_steps = 5\n[model]\noptions = {depth = 2}")
    config = load_config(path, ["rounds=", "training.local_steps=", "model.options.depth="])
    assert (config.rounds, config.training.local_steps, config.model.options) == (60, None, {})
    assert load_config(path, ["training.momentum="]).training.momentum is None  # it was not set
    assert refused("", tmp_path, 'name=""').key == "name"  # set, to an empty text
    assert override(config, ["rounds="]) == config
    assert "'batch_size'" in str(refused("", tmp_path, "training.bach_size="))
    groups = GROUPS.format(share=0.5, ratio=0.5)
    assert "clients.groups.0" in str(refused(groups, tmp_path, "clients.groups.0="))


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
    with pytest.raises(ValueError, match=r"share of 0\.1 of 2 clients"):
        ClientsConfig(num_clients=2, groups=shares)


def test_schedules():
    constant = TrainingConfig()
    assert [constant.rate_factor(t) for t in (0, 9)] == [1, 1]
    falling = TrainingConfig(schedule="1/t")
    assert [falling.rate_factor(t) for t in (0, 1, 3)] == [1, 1 / 2, 1 / 4]
    later = TrainingConfig(schedule="constant-then-1/t", constant_rounds=10, decay_rounds=5.0)
    assert [later.rate_factor(t) for t in (0, 10, 15)] == [1, 1, 1 / 2]


def test_parse_from_python():
    with pytest.raises(ConfigError) as error:
        parse_config({"rounds": 0})
    assert (error.value.key, error.value.place) == ("rounds", "")


def test_words_that_are_no_files_stay(tmp_path):
    (tmp_path / "run.toml").write_text(
        '[data]\nname = "nodes"\n[fleet]\ndevices = "nodes"\n[engine]\nname = "flower"\n'
        '[model]\nweights = "start.safetensors"\n'
    )
    config = load_config(tmp_path / "run.toml")
    assert config.fleet.devices == "nodes"
    assert config.model.weights == str(tmp_path / "start.safetensors")  # beside the file
    assert config.code == str(tmp_path)
