"""Read and validate TOML: errors name the key, its line, what was given and what is allowed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedplt.builtin import find_config
from fedplt.configuration.config import RunConfig
from fedplt.errors import ConfigError, FedpltError, did_you_mean

_KEY = re.compile(rf"\b(?:{'|'.join(RunConfig.model_fields)})(?:\.\w+)*")


@dataclass(frozen=True)
class Places:
    """Where values came from."""

    text: str = ""
    """The TOML source."""
    where: str = ""
    """Its file name; empty: the values came from Python."""
    overridden: Sequence[str] = ()
    """Keys that were set on the command line."""

    def of(self, location: Sequence[Any], message: str = "") -> str:
        """The place of a key, in brackets, with those of other keys that the message names."""
        key = ".".join(map(str, location))
        keys = [key] if key else []
        if not key or any(each.startswith(f"{key}.") for each in self.overridden):
            inside = [each for each in self.overridden if each.startswith(f"{key}.")]
            keys += [*(inside if key else []), *_KEY.findall(message)]
        found = [self._place(each, alone=len(keys) == 1) for each in dict.fromkeys(keys)]
        known = [place for place in found if place]
        if not known and self.where:
            return f" (in {self.where})"
        return f" ({'; '.join(known)})" if known else ""

    def _place(self, key: str, alone: bool) -> str:
        name = "" if alone else f"{key} "
        if any(f"{key}.".startswith(f"{given}.") for given in self.overridden):
            return f"{name}set by --set"
        line = line_of(self.text, key.split("."))
        if not self.where or (line is None and not alone):
            return ""
        return f"{name}in {self.where}" + ("" if line is None else f", line {line}")


def keys_of(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0].strip() for override in overrides]


@contextmanager
def placing(path: str | Path, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Add the place of the value to errors about a key that are found after validation."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        match = re.match(rf"({_KEY.pattern}): ", text)
        if match is None or re.search(r"\((in |[\w. ]*set by --set)", text):
            raise
        file = find_config(path)
        source = file.read_text(encoding="utf-8-sig") if file.is_file() else ""
        place = Places(source, str(path), keys_of(overrides)).of(match[1].split("."))
        raise type(error)(text.rstrip() + place) from error


def line_of(text: str, location: Sequence[Any]) -> int | None:
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
            inside = nearest is None and table[: len(wanted)] == wanted  # a table of the section
            if table == wanted[: len(table)] or inside:
                nearest = number
        elif (assigned := re.match(r"\s*([\w.\-]+)\s*=", line)) and (
            table + assigned[1].split(".") == wanted[: len(table) + len(assigned[1].split("."))]
        ):
            return number
    return nearest


Model = TypeVar("Model", bound=BaseModel)

_NEEDED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text in quotes",
    "list_type": "a list in square brackets",
    "dict_type": "a table",
    "literal_error": "{expected}",
    "greater_than": "a number greater than {gt:g}",
    "greater_than_equal": "a number greater than or equal to {ge:g}",
    "less_than": "a number less than {lt:g}",
    "less_than_equal": "a number less than or equal to {le:g}",
    "too_short": "at least {min_length} of them",
    "string_pattern_mismatch": "one of the known forms",
}
"""What is needed instead, by the validating library's name of the mistake."""


def read_text(path: str | Path, error_type: type[FedpltError]) -> str:
    try:
        if Path(path).is_char_device():  # such as /dev/zero, which never ends
            raise error_type(f"{path} cannot be read: it is not an ordinary file.")
        return Path(path).read_text(encoding="utf-8-sig")
    except FedpltError:
        raise
    except (OSError, ValueError) as error:  # no text, or NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise error_type(f"{path} cannot be read: {reason}") from error


def parse_toml(text: str, path: str | Path, error_type: type[FedpltError]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise error_type(f"{path} is not valid TOML: {error}") from error
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise error_type(f"{path} cannot be read: {error}") from error


def validate(
    kind: type[Model],
    values: dict[str, Any],
    error_type: type[FedpltError],
    *,
    text: str = "",
    where: str = "",
    overridden: Sequence[str] = (),
) -> Model:
    """Validate the values as a pydantic model; one error names every wrong key.

    ``text`` is the TOML source and ``where`` its file name, for line numbers in messages; keys in
    ``overridden`` were set on the command line instead.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        by_key: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for one in map(dict, error.errors()):
            by_key.setdefault(_location(values, one), []).append(one)
        places = Places(text, where, overridden)
        found = [_problem(kind, list(key), errors, places) for key, errors in by_key.items()]
        raise error_type("\n".join(found)) from None


def unknown_key(kind: type[BaseModel], location: Sequence[str]) -> str:
    """Why there is no such key; empty if there is one."""
    values: Any = None
    for part in reversed(location):
        values = {part: values}
    try:
        kind.model_validate(values)
    except ValidationError as error:
        for one in error.errors():
            if one["type"] == "extra_forbidden":
                return _message(kind, [dict(one)], one["loc"], ".".join(location))
    return ""


def _location(values: Any, error: dict[str, Any]) -> tuple[Any, ...]:
    """The key's path. Names of types, which the library adds to it, are not in the values."""
    path: list[Any] = []
    for part in error["loc"]:
        try:
            values = values[part]
        except (TypeError, LookupError):
            if error["type"] == "missing":
                path.append(part)
            continue
        path.append(part)
    return tuple(path)


def _problem(
    kind: type[BaseModel], location: list[Any], errors: list[dict[str, Any]], places: Places
) -> str:
    key = ".".join(map(str, location))
    message = _message(kind, errors, location, key)
    return (f"{key}: " if key else "") + message + places.of(location, message)


def _message(
    kind: type[BaseModel], errors: list[dict[str, Any]], location: Sequence[Any], key: str
) -> str:
    error = errors[0]
    if error["type"] == "extra_forbidden":
        section, _ = _find(kind, location[:-1])
        known = section.model_fields if section else ()
        return f"there is no such key. {did_you_mean(str(location[-1]), known)}"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return "this key is missing; set it."
    if error["type"] == "model_type":
        return f"this is a table: write [{key}], not {key} = {_short(error['input'])}."
    needed = [_NEEDED.get(one["type"], one["msg"]).format(**one.get("ctx", {})) for one in errors]
    _, field = _find(kind, location)
    examples = " or ".join(map(repr, field.examples)) if field and field.examples else ""
    example = f" Write it like {examples}." if examples else ""
    given = error["input"]
    alike = [word for one in errors for word in _words(one)]
    if isinstance(given, str) and alike:
        hint = did_you_mean(given, alike)
        example += "" if hint.startswith("Known") else f" {hint}"
    shown = str(given).lower() if isinstance(given, bool) else _short(given)
    return f"must be {' or '.join(dict.fromkeys(needed))}, but it is {shown}.{example}"


def _words(error: dict[str, Any]) -> list[str]:
    """The words to choose from."""
    expected = error.get("ctx", {}).get("expected", "")
    return [word.strip("'") for word in expected.replace(" or ", ", ").split(", ") if word]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _find(
    kind: type[BaseModel], location: Sequence[Any]
) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The section at a key (None: a plain value), and the last field on the path to it."""
    section: type[BaseModel] | None = kind
    field = None
    for part in location:
        if section is not None and part in section.model_fields:
            field = section.model_fields[part]
            options = (field.annotation, *getattr(field.annotation, "__args__", ()))
            sections = (o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
            section = next(sections, None)
    return section, field
