"""Read a TOML configuration, apply ``--set`` overrides and validate the result.

Errors name the key, the file and the line, what was given and what is allowed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from fedplt.configs import builtin_fleets, find_config
from fedplt.configuration.config import FROM_PYTHON, RunConfig
from fedplt.configuration.fleet_config import ON_NODES
from fedplt.configuration.presets import PRESETS
from fedplt.errors import ConfigError, FedpltError, RunError, did_you_mean
from fedplt.files import a_path
from fedplt.schema import find_section, problems

Model = TypeVar("Model", bound=BaseModel)


def read_text(path: str | Path, error_type: Callable[[str], FedpltError]) -> str:
    try:
        if Path(path).is_char_device():  # such as /dev/zero, which never ends
            raise OSError("it is not an ordinary file.")
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # the file is not text, or its name has a NUL
        reason = getattr(error, "strerror", None) or error
        raise error_type(f"{path} cannot be read: {reason}") from error


def parse_toml(text: str, path: str | Path, error_type: type[FedpltError]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also thousands of digits, or of brackets
        raise error_type(f"{path} is not valid TOML: {error}") from error


def line_of(text: str, location: Sequence[Any]) -> int | None:
    """The line of the TOML text that sets this key, or that opens its table."""
    wanted = [str(part) for part in location]
    table: list[str] = []
    arrays: dict[str, int] = {}
    inside: int | None = None
    around: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.\-]+)\s*\]", line):
            table = header[2].split(".")
            if header[1] == "[[":
                arrays[header[2]] = arrays.get(header[2], -1) + 1
                table.append(str(arrays[header[2]]))
            if table[: len(wanted)] == wanted:
                inside = inside or number
            elif table == wanted[: len(table)]:
                around = number
        elif (assigned := re.match(r"\s*([\w.\-]+)\s*=", line)) and (
            table + assigned[1].split(".") == wanted[: len(table) + len(assigned[1].split("."))]
        ):
            return number
    return inside or around


@dataclass(frozen=True)
class Source:
    """Where the values of a configuration come from."""

    text: str = ""
    """The TOML text."""
    file: str = ""
    """Its file name; empty: the values come from Python."""
    overrides: Sequence[str] = ()
    """``key=value`` from the command line."""

    def add_place(self, error: FedpltError) -> None:
        """Set the place of an error: where its key and the keys in conflict with it are set."""
        overridden = [override.partition("=")[0].strip() for override in self.overrides]
        inside = [key for key in overridden if error.key and key.startswith(f"{error.key}.")]
        keys = dict.fromkeys(filter(None, [error.key, *inside, *error.also]))
        known = {key: place for key in keys if (place := self._place(key, overridden))}
        texts = (f"{key} {place}" if len(keys) > 1 else place for key, place in known.items())
        error.place = "; ".join(texts)
        if not error.place and self.file:
            error.place = f"in {self.file}"

    def _place(self, key: str, overridden: Sequence[str]) -> str:
        if any(f"{key}.".startswith(f"{given}.") for given in overridden):
            return "set by --set"
        line = line_of(self.text, key.split("."))
        return "" if line is None or not self.file else f"in {self.file}, line {line}"


@contextmanager
def placing(path: str | Path, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Add the place of the key to errors that occur after validation."""
    try:
        yield
    except ConfigError as error:
        if error.key.partition(".")[0] in RunConfig.model_fields and not error.place:
            file = find_config(path)
            text = file.read_text(encoding="utf-8-sig") if file.is_file() else ""
            Source(text, str(path), overrides).add_place(error)
        raise


def validate(
    kind: type[Model],
    values: dict[str, Any],
    error_type: type[FedpltError],
    source: Source = Source(),  # noqa: B008 (it is frozen)
) -> Model:
    """Validate the values as a pydantic model; one error names every wrong key."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        found = problems(error, kind, values)
        for problem in found:
            source.add_place(problem)
        if len(found) > 1:
            raise error_type("\n".join(map(str, found))) from None
        one = found[0]
        raise error_type(one.message, key=one.key, also=one.also, place=one.place) from None


def load_section(kind: type[Model], path: str | Path, error_type: type[FedpltError]) -> Model:
    """Read a TOML file that holds the keys of one section."""
    text = read_text(path, error_type)
    values = parse_toml(text, path, error_type)
    return validate(kind, values, error_type, Source(text, str(path)))


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a file, or a built-in one by name, with ``key.sub=value`` overrides."""
    path = find_config(path)
    return read_config(read_text(path, ConfigError), path, overrides, code=".")


def read_config(
    text: str, path: str | Path, overrides: Sequence[str] = (), code: str | None = None
) -> RunConfig:
    """The configuration in a text; ``path`` is for messages and to resolve relative paths.

    ``code``: the value of this key if the text has none.
    """
    values = parse_toml(text, path, ConfigError)
    if code is not None:
        values.setdefault("code", code)
    make_absolute(values, Path(path).parent)
    for override in overrides:
        _apply(values, override)
    make_absolute(values)
    return parse_config(values, Source(text, str(path), overrides))


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
    return parse_config(values, Source(overrides=overrides))


Changes = Mapping[str, Any] | Sequence[str]
"""Values by key (``{"rounds": 300}``, nested for sections), or ``key.sub=value`` overrides."""


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
                f"it is {value!r:.60}; give a number, a text, true, false or a list.", key=key
            ) from error
        result.append(f"{key}={text}")
    return result


def parse_config(values: dict[str, Any], source: Source = Source()) -> RunConfig:  # noqa: B008
    """Validate plain values; one :class:`ConfigError` names every wrong key."""
    return validate(RunConfig, values, ConfigError, source)


def dump_config(config: RunConfig) -> str:
    """The whole configuration as TOML, defaults included."""
    return tomli_w.dumps(config.model_dump(exclude_none=True, mode="json"))


def flatten(config: RunConfig) -> dict[str, Any]:
    """``{"training.batch_size": 64, ...}``, to compare configurations key by key."""
    return dict(_flat(config.model_dump(mode="json"), ""))


def follows_preset(config: RunConfig, name: str) -> bool:
    """Whether a configuration has all values of a preset, which it does not name any more."""
    return dict(_flat(PRESETS[name], "")).items() <= flatten(config).items()


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
        target[int(last) if isinstance(target, list) else last] = value
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"--set {override}: there is nothing at {key!r} to set.") from error


def _unset(values: dict[str, Any], path: Sequence[str], last: str) -> None:
    """``--set key=``: restore the default."""
    key = ".".join([*path, last])
    target: Any = values
    for part in path:
        target = target.get(part, {}) if isinstance(target, dict) else target
    if not isinstance(target, dict):
        raise ConfigError(f"--set {key}=: an entry of a list cannot be unset; set the whole list.")
    section, _ = find_section(RunConfig, path)
    if last not in target and section is not None and last not in section.model_fields:
        hint = did_you_mean(last, section.model_fields)
        raise ConfigError(f"there is no such key. {hint}", key=f"--set {key}=")
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

    ``folder``: the folder of the configuration's file, which also has the modules it names.
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
    """Advice for an output folder that exists already."""
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
