"""Read a TOML configuration, apply ``--set`` overrides and validate the result."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedplt.builtin import builtin_fleets, find_config
from fedplt.configuration.config import RunConfig
from fedplt.configuration.config_errors import keys_of, parse_toml, read_text, unknown_key, validate
from fedplt.configuration.section import FROM_PYTHON, ON_NODES
from fedplt.errors import ConfigError, RunError
from fedplt.files import a_path


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a file, or a built-in one by name, with ``key.sub=value`` overrides."""
    path = find_config(path)
    return read_config(read_text(path, ConfigError), path, overrides, code=".")


def read_config(
    text: str, path: str | Path, overrides: Sequence[str] = (), code: str | None = None
) -> RunConfig:
    """The configuration in a text; ``path`` is for messages, and where relative paths start.

    ``code`` is used if the text has no such key.
    """
    values = parse_toml(text, path, ConfigError)
    if code is not None:
        values.setdefault("code", code)
    make_absolute(values, Path(path).parent)
    for override in overrides:
        _apply(values, override)
    make_absolute(values)
    return parse_config(values, text, str(path), keys_of(overrides))


ConfigLike = RunConfig | Mapping[str, Any] | str | Path
"""A configuration, a dictionary of its sections, a TOML file, or a built-in one's name."""


def as_config(config: ConfigLike) -> RunConfig:
    """Convert any :data:`ConfigLike` to a configuration."""
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        values = {k: dict(v) if isinstance(v, Mapping) else v for k, v in config.items()}
        values.setdefault("code", ".")
        make_absolute(values, Path())
        return parse_config(values)
    return load_config(a_path(config, "config", ConfigError))


def override(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """A copy of the configuration with ``key.sub=value`` overrides applied."""
    values = config.model_dump(exclude_none=True, mode="json")
    for entry in overrides:
        _apply(values, entry)
    make_absolute(values)
    return parse_config(values, overridden=keys_of(overrides))


Changes = Mapping[str, Any] | Sequence[str]
"""Values by key (``{"rounds": 300}``, also in sections), or ``key.sub=value`` overrides."""


def overrides_of(changes: Changes) -> list[str]:
    """The changes as ``key.sub=value`` overrides.

    >>> overrides_of({"rounds": 300, "training": {"optimizer": "sgd"}})
    ['rounds=300', 'training.optimizer="sgd"']
    """
    if isinstance(changes, str):
        return [changes]
    if not isinstance(changes, Mapping):
        return list(changes)
    result = []
    for key, value in _flat(dict(changes), ""):
        try:
            text = tomli_w.dumps({"value": value}).partition("=")[2].strip()
        except TypeError as error:
            raise ConfigError(
                f"{key} is {value!r:.60}; give a number, a text, true, false or a list."
            ) from error
        result.append(f"{key}={text}")
    return result


def parse_config(
    values: dict[str, Any], text: str = "", where: str = "", overridden: Sequence[str] = ()
) -> RunConfig:
    """Validate plain values; one :class:`ConfigError` names every wrong key."""
    return validate(RunConfig, values, ConfigError, text=text, where=where, overridden=overridden)


def dump_config(config: RunConfig) -> str:
    """The whole configuration as TOML, defaults included."""
    return tomli_w.dumps(config.model_dump(exclude_none=True, mode="json"))


def flatten(config: RunConfig) -> dict[str, Any]:
    """``{"training.batch_size": 64, ...}``, to compare configurations key by key."""
    return dict(_flat(config.model_dump(mode="json"), ""))


def _flat(value: Any, prefix: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [entry for key in value for entry in _flat(value[key], f"{prefix}.{key}")]
    return [(prefix.lstrip("."), value)]


def parse_value(raw: str) -> Any:
    """A value as in TOML; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):  # TOMLDecodeError, or thousands of digits or brackets
        return raw.strip()


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, raw = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: write key=value, such as training.batch_size=32.")
    *path, last = key.strip().split(".")
    if not raw.strip():
        _unset(values, path, last)
        return
    value = parse_value(raw)
    target: Any = values
    try:
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
        if isinstance(target, list):
            target[int(last)] = value
        else:
            target[last] = value
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"--set {override}: there is nothing at {key!r} to set.") from error


def _unset(values: dict[str, Any], path: Sequence[str], last: str) -> None:
    """``--set key=``: back to the default."""
    key = ".".join([*path, last])
    target: Any = values
    for part in path:
        target = target.get(part, {}) if isinstance(target, dict) else target
    if not isinstance(target, dict):
        raise ConfigError(f"--set {key}=: an entry of a list cannot be unset; set the whole list.")
    if last not in target and (problem := unknown_key(RunConfig, [*path, last])):
        raise ConfigError(f"--set {key}=: {problem}")
    target.pop(last, None)


FILES = (
    ("data", "split_file"),
    ("fleet", "devices"),
    ("fleet", "availability"),
    ("model", "weights"),
)
"""Keys whose values are files."""
NO_FILES = ("", FROM_PYTHON, ON_NODES)


def make_absolute(values: dict[str, Any], folder: Path | None = None) -> None:
    """Make relative paths in plain values absolute, so that a run can be resumed from anywhere.

    ``folder``: that of the configuration's file, which also has the modules it names.
    """
    for section, key in FILES:
        inner = values.get(section)
        given = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(given, str) and given not in NO_FILES:
            here, beside = Path(given).absolute(), (folder or Path()).absolute() / given
            found = here if here.exists() and not beside.exists() else beside
            known = builtin_fleets() if key == "devices" and not found.exists() else {}
            inner[key] = str(known.get(given, found))
    code = values.get("code")
    if folder is not None and isinstance(code, str):
        values["code"] = str((folder / code).absolute())


SAME_CALL = "call fedplt.train with the same arguments and resume=True"


def how_to_continue(path: Path) -> str:
    """What to do about a folder that exists already."""
    config = path / "config.toml"
    replace = "or replace it with --overwrite (from Python: overwrite=True)."
    if not config.is_file():
        return "It is not a run's: choose another with --out (from Python: out=)."
    if FROM_PYTHON in read_text(config, RunError):
        return f"To continue it, {SAME_CALL}; else choose another folder with out=, {replace}"
    return (
        f"Continue it with 'fedplt resume {path}', choose another folder with --out (from Python: "
        f"out=), {replace}"
    )
