"""Names of modules by pattern, as in a shell; a module's name stands for all that is in it."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from fedplt.errors import CutError, did_you_mean

Patterns = str | Sequence[str]
T = TypeVar("T")


def matches(name: str, pattern: str) -> bool:
    """
    >>> matches("blocks.0.mlp", "blocks.*"), matches("blocks.0.mlp", "blocks.0"), matches("a", "b")
    (True, True, False)
    """
    return fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def match_all(what: str, patterns: Patterns, names: Iterable[str]) -> set[str]:
    """All names that some pattern matches; an error for a pattern that matches none."""
    names = list(names)
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matching = {name for name in names if matches(name, pattern)}
        if not matching:
            raise CutError(f"{what}: no layer matches {pattern!r}. {did_you_mean(pattern, names)}")
        found |= matching
    return found


def first_match(name: str, values: Mapping[str, T]) -> T | None:
    """The value of the first pattern that matches the name."""
    return next((value for pattern, value in values.items() if matches(name, pattern)), None)
