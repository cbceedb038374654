"""Read a TOML configuration, apply ``--set`` overrides, and say clearly what is wrong with it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from fedplt.errors import ConfigError, did_you_mean
from fedplt.federation.config import RunConfig


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a file, with ``key.sub=value`` overrides applied."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for override in overrides:
        _apply(values, override)
    return parse_config(values, text, str(path), _keys(overrides))


ConfigLike = RunConfig | Mapping[str, Any] | str | Path
"""A configuration, its values, or the file that has them."""


def as_config(config: ConfigLike) -> RunConfig:
    """The configuration, wherever it comes from."""
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        return parse_config(dict(config))
    return load_config(config)


def override(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The same configuration with ``key.sub=value`` overrides applied."""
    values = config.model_dump(exclude_none=True, mode="json")
    for entry in overrides:
        _apply(values, entry)
    return parse_config(values, overridden=_keys(overrides))


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0].strip() for override in overrides]


def parse_config(
    values: dict[str, Any], text: str = "", where: str = "", overridden: Sequence[str] = ()
) -> RunConfig:
    """Validate plain values; one :class:`ConfigError` names every wrong key."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        problems = [_problem(dict(entry), text, where, overridden) for entry in error.errors()]
        raise ConfigError("\n".join(problems)) from None


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


def _problem(error: dict[str, Any], text: str, where: str, overridden: Sequence[str]) -> str:
    location = [
        part for part in error["loc"] if part not in ("int", "float") and part != "literal['full']"
    ]
    key = ".".join(map(str, location))
    if error["type"] == "extra_forbidden":
        message = f"there is no such key. {did_you_mean(str(location[-1]), _known_keys(location))}"
    elif error["type"] == "value_error":
        message = str(error["ctx"]["error"])
    elif error["type"] == "missing":
        message = "this key is missing; set it."
    else:
        message = f"{error['msg']}, but it is {error['input']!r}."
    if any(f"{key}.".startswith(f"{given}.") for given in overridden):
        return f"{key}: {message} (set by --set)"
    line = _line_of(text, location)
    place = f" (in {where}{f', line {line}' if line else ''})" if where else ""
    return f"{key}: {message}{place}" if key else f"{message}{place}"


def _known_keys(location: Sequence[Any]) -> list[str]:
    kind: Any = RunConfig
    for part in location[:-1]:
        if isinstance(part, str) and isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[part].annotation
            arguments = getattr(kind, "__args__", ())
            kind = next((a for a in arguments if isinstance(a, type)), kind)
    return list(kind.model_fields) if issubclass(kind, BaseModel) else []


def _line_of(text: str, location: Sequence[Any]) -> int | None:
    """The line of the TOML text that sets this key, or that opens its table."""
    wanted = [str(part) for part in location]
    table: list[str] = []
    arrays: dict[str, int] = {}
    nearest: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.\-]+)\s*\]", line):
            table = header[2].split(".")
            if header[1] == "[[":
                arrays[header[2]] = arrays.get(header[2], -1) + 1
                table.append(str(arrays[header[2]]))
            if table == wanted[: len(table)]:
                nearest = number
        elif (assigned := re.match(r"\s*([\w.\-]+)\s*=", line)) and (
            table + assigned[1].split(".") == wanted[: len(table) + len(assigned[1].split("."))]
        ):
            return number
    return nearest
