"""Read a TOML configuration, apply ``--set`` overrides and validate the result."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedplt.errors import ConfigError
from fedplt.federation.config import RunConfig
from fedplt.federation.config_errors import parse_toml, read_text, validate
from fedplt.federation.config_paths import make_absolute
from fedplt.imports import search_first


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a file, with ``key.sub=value`` overrides applied."""
    text = read_text(path, ConfigError)
    values = parse_toml(text, path, ConfigError)
    make_absolute(values, Path(path).parent)
    for override in overrides:
        _apply(values, override)
    make_absolute(values)
    return parse_config(values, text, str(path), _keys(overrides))


ConfigLike = RunConfig | Mapping[str, Any] | str | Path
"""A configuration, a dictionary of its sections, or the path of a TOML file."""


def as_config(config: ConfigLike) -> RunConfig:
    """Convert any :data:`ConfigLike` to a configuration."""
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        return parse_config(dict(config))
    return load_config(config)


def override(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """A copy of the configuration with ``key.sub=value`` overrides applied."""
    values = config.model_dump(exclude_none=True, mode="json")
    for entry in overrides:
        _apply(values, entry)
    make_absolute(values)
    return parse_config(values, overridden=_keys(overrides))


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0].strip() for override in overrides]


def parse_config(
    values: dict[str, Any], text: str = "", where: str = "", overridden: Sequence[str] = ()
) -> RunConfig:
    """Validate plain values; one :class:`ConfigError` names every wrong key."""
    config = validate(RunConfig, values, ConfigError, text=text, where=where, overridden=overridden)
    if config.code is not None:
        search_first(config.code)
    return config


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
    except tomllib.TOMLDecodeError:
        return raw.strip()


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, raw = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: write key=value, such as training.batch_size=32.")
    value = parse_value(raw)
    *path, last = key.strip().split(".")
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
