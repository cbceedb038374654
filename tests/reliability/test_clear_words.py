"""Odd configurations are refused with the key, what is wrong and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedplt
from fedplt import ConfigError
from fedplt.configuration import load_config, override, parse_config
from fedplt.federation.loop import Federation
from fedplt.imports import import_object
from fedplt.models import build_model
from tests.support.engines import FakeEngine
from tests.support.jobs import blob_job


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"name": "../../x"}, "name: .*no slash"),
        ({"name": "a\0b"}, "NUL"),
        ({"seed": 10**30}, r"below 2\^63"),
        ({"clients": {"num_clients": 10**9}}, "clients.num_clients: .*less than"),
        ({"diagnostics": {"enabled": True, "window": 10**9}}, "diagnostics.window"),
        ({"training": {"learning_rate": float("inf")}}, "learning_rate: give a finite number"),
        (
            {"training": {"optimizer_options": {"betas": [0.9, float("nan")]}}},
            "training.optimizer_options.betas.1: give a finite number",
        ),
        ({"model": {"options": {"width": 10**30}}}, "model.options.width"),
    ],
)
def test_values(values, expected):
    with pytest.raises(ConfigError, match=expected):
        parse_config(values)


def test_deep_options():
    value: list = []
    for _ in range(100):
        value = [value]
    with pytest.raises(ConfigError, match="levels deep at most"):
        parse_config({"model": {"options": {"x": value}}})


@pytest.mark.parametrize("text", ["seed = " + "9" * 5000, "seed = " + "[" * 3000, "seed = \0"])
def test_texts(text, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"a\.toml"):
        load_config(tmp_path / "a.toml")
    with pytest.raises(ConfigError):
        override(parse_config({}), [text.replace(" ", "")])


def test_optimizer_options_are_tried():
    with pytest.raises(ConfigError, match=r"adam does not take {'betas': \[0\.9\]}"):
        blob_job(training={"optimizer": "adam", "optimizer_options": {"betas": [0.9]}})


def test_a_window_that_does_not_fit_into_memory(monkeypatch):
    monkeypatch.setattr("fedplt.federation.preflight.settings.physical_memory", lambda: 1000)
    job = blob_job(diagnostics={"enabled": True, "window": 50})
    with pytest.raises(ConfigError, match=r"window: 50 copies of this model need .* Set at most 3"):
        Federation(job, FakeEngine(job))


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "builtins:eval", "posix:system"])
def test_python_itself_is_never_called(name):
    with pytest.raises(ConfigError, match="part of Python itself"):
        build_model(name, {}, 0)


@pytest.mark.parametrize("name", ["torch:load", "torch.hub:load", "numpy:load", "torch:compile"])
def test_functions_of_packages_must_say_that_they_build_a_model(name):
    with pytest.raises(ConfigError, match="annotated"):
        build_model(name, {"x": "never called"}, 0)


def test_a_foreign_name_in_a_file_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_file.py").write_text("from os import system as build\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert import_object("own_file:build", "model.name")
    with pytest.raises(ConfigError, match="annotated"):
        build_model("own_file:build", {"command": "true"}, 0)


def test_what_a_node_reads_from_the_server_names_no_code():
    """Models, data and losses are in a node's own node.toml, which ``node_config.py`` reads."""
    folder = Path(fedplt.__file__).parents[1] / "fedplt_flower"
    for name in ("node/client_app", "app/slices_app", "messages", "records"):
        text = (folder / f"{name}.py").read_text()
        for word in ("import_object", "importlib", "make_method", "build_model", "read_plan"):
            assert word not in text, f"{name}.py uses {word}"
