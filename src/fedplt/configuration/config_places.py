"""Where the values of a configuration come from: a line of a file, or ``--set``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedplt.builtin import find_config
from fedplt.configuration.config import RunConfig
from fedplt.errors import ConfigError

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
