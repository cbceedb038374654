"""Read and validate TOML: errors name the key, its line, what was given and what is allowed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedplt.errors import FedpltError, did_you_mean

Model = TypeVar("Model", bound=BaseModel)


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
        found = (_problem(kind, dict(one), text, where, overridden) for one in error.errors())
        raise error_type("\n".join(found)) from None


def _problem(
    kind: type[BaseModel], error: dict[str, Any], text: str, where: str, overridden: Sequence[str]
) -> str:
    location = [
        part for part in error["loc"] if part not in ("int", "float") and part != "literal['full']"
    ]
    key = ".".join(map(str, location))
    message = _message(kind, error, location, key)
    if any(f"{key}.".startswith(f"{given}.") for given in overridden):
        return f"{key}: {message} (set by --set)"
    line = line_of(text, location)
    place = f" (in {where}{f', line {line}' if line else ''})" if where else ""
    return f"{key}: {message}{place}" if key else f"{message}{place}"


def _message(
    kind: type[BaseModel], error: dict[str, Any], location: Sequence[Any], key: str
) -> str:
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
    _, field = _find(kind, location)
    example = f" Write it like {field.examples[0]!r}." if field and field.examples else ""
    return f"{error['msg']}, but it is {_short(error['input'])}.{example}"


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
            if table == wanted[: len(table)]:
                nearest = number
        elif (assigned := re.match(r"\s*([\w.\-]+)\s*=", line)) and (
            table + assigned[1].split(".") == wanted[: len(table) + len(assigned[1].split("."))]
        ):
            return number
    return nearest
