"""Plain values with checked types: the base class of sections, and the wording of their errors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from fedplt.errors import ConfigError, FedpltError, did_you_mean
from fedplt.text import REPR, shortened

MAX_INTEGER = 2**63 - 1
MAX_DEPTH = 20
"""Of nested lists and tables."""


class Section(BaseModel):
    """A section that refuses unknown keys and never converts values (``"3"`` is no number)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unusable_values(cls, values: Any) -> Any:
        _refuse_unusable(values, ())
        return values

    def refuse_conflicts(self) -> None:
        """Raise ConfigError for values that do not fit each other; sections override this."""

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Self:
        self.refuse_conflicts()
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Only keys that differ from their defaults."""
        for name, field in type(self).model_fields.items():
            if (value := getattr(self, name)) != field.default:
                yield name, value

    def __repr__(self) -> str:
        return shortened(super().__repr__(), REPR)

    def refuse_unused(self, keys: Iterable[str], because: str, instead: str) -> None:
        """Refuse keys that have no effect, unless they have their default value.

        Defaults are accepted because a run's folder holds its whole configuration.
        """
        fields = type(self).model_fields
        unused = [key for key in keys if getattr(self, key) != fields[key].default]
        if unused:
            pronoun = "it" if len(unused) == 1 else "them"
            problem = f"{because} does not use {', '.join(unused)}: leave {pronoun} out, {instead}"
            raise ConfigError(problem, key=unused[0], also=unused[1:])


def _refuse_unusable(value: Any, path: tuple[str, ...]) -> None:
    """Refuse infinity, NUL characters, huge integers and deep nesting, at any depth."""
    key = ".".join(path)
    if len(path) > MAX_DEPTH:
        problem = f"tables and lists can be nested {MAX_DEPTH} levels deep at most"
        raise ConfigError(problem, key=".".join(path[:3]) + "...")
    if isinstance(value, dict):
        for name, item in value.items():
            _refuse_unusable(str(name), path)
            _refuse_unusable(item, (*path, str(name)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_unusable(item, (*path, str(index)))
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"give a finite number, not {value}", key=key)
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ConfigError("give a number below 2^63; this one has too many digits", key=key)
    elif isinstance(value, str) and "\0" in value:
        raise ConfigError(f"a text cannot hold a NUL character: {value!r:.60}", key=key)


def problems(
    error: ValidationError, kind: type[BaseModel] | None = None, values: Any = None
) -> list[FedpltError]:
    """One error per wrong key. ``kind`` and ``values``, if given, are what was validated."""
    by_key: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    found: list[dict[str, Any]] = [dict(one) for one in error.errors(include_url=False)]
    for one in found:
        location = one["loc"] if values is None else tuple(_location(values, one))
        by_key.setdefault(location, []).append(one)
    return [_problem(kind, location, errors) for location, errors in by_key.items()]


def first_problem(error: ValidationError) -> str:
    """The first wrong key and the reason, on one line.

    >>> class Example(Section):
    ...     rounds: int
    >>> try:
    ...     Example(rounds="ten")
    ... except ValidationError as error:
    ...     first_problem(error)
    "rounds: must be a whole number, but it is 'ten'."
    """
    return str(problems(error)[0])


_REQUIREMENTS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
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
"""By pydantic's name of the error."""


def _location(values: Any, error: dict[str, Any]) -> list[Any]:
    """The key's path without the names of types that pydantic adds for unions."""
    path: list[Any] = []
    for part in error["loc"]:
        try:
            values = values[part]
        except (TypeError, LookupError):
            if error["type"] == "missing":
                path.append(part)
            continue
        path.append(part)
    return path


def _problem(
    kind: type[BaseModel] | None, location: Sequence[Any], errors: list[dict[str, Any]]
) -> FedpltError:
    error, key = errors[0], ".".join(map(str, location))
    if error["type"] == "value_error":
        raised = error["ctx"]["error"]
        if isinstance(raised, FedpltError):  # its keys are relative to the section, or whole
            below, *also = (_below(key, each) for each in (raised.key, *raised.also))
            return FedpltError(raised.message, key=below, also=also)
        return FedpltError(str(raised), key=key)
    return FedpltError(_wording(kind, location, errors), key=key)


def _below(section: str, key: str) -> str:
    """
    >>> _below("sampling", "budget"), _below("sampling", "sampling.budget"), _below("", "rounds")
    ('sampling.budget', 'sampling.budget', 'rounds')
    """
    if not section or not key or f"{key}.".startswith(f"{section}."):
        return key or section
    return f"{section}.{key}"


def _wording(
    kind: type[BaseModel] | None, location: Sequence[Any], errors: list[dict[str, Any]]
) -> str:
    error = errors[0]
    if error["type"] == "extra_forbidden":
        section, _ = find_section(kind, location[:-1])
        hint = f" {did_you_mean(str(location[-1]), section.model_fields)}" if section else ""
        return f"there is no such key.{hint}"
    if error["type"] == "missing":
        return "this key is missing."
    given = error["input"]
    if error["type"] == "model_type":
        name = ".".join(map(str, location))
        return f"this is a table: write [{name}], not {name} = {_short(given)}."
    _, field = find_section(kind, location)
    required = [_requirement(one) for one in errors]
    examples = " or ".join(map(repr, field.examples)) if field and field.examples else ""
    hint = f" Write it like {examples}." if examples else ""
    expected = " ".join(one.get("ctx", {}).get("expected", "") for one in errors)
    choices = re.findall(r"'([^']*)'", expected)
    if isinstance(given, str) and choices:
        similar = did_you_mean(given, choices)
        hint += "" if similar.startswith("Known") else f" {similar}"
    shown = str(given).lower() if isinstance(given, bool) else _short(given)
    return f"must be {' or '.join(dict.fromkeys(required))}, but it is {shown}.{hint}"


def _requirement(error: dict[str, Any]) -> str:
    """Only our own wordings are formatted: pydantic's may quote the input, braces and all."""
    wording = _REQUIREMENTS.get(error["type"])
    return str(error["msg"]) if wording is None else wording.format(**error.get("ctx", {}))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def find_section(
    kind: type[BaseModel] | None, location: Sequence[Any]
) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The section at a key (None: a plain value), and the last field on the path to it."""
    section, field = kind, None
    for part in location:
        if section is not None and part in section.model_fields:
            field = section.model_fields[part]
            options = (field.annotation, *getattr(field.annotation, "__args__", ()))
            sections = (o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
            section = next(sections, None)
    return section, field
