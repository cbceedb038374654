"""What a node's owner allows: ``limits.toml`` beside ``node.toml``. A missing key allows all.

max_ratio = 0.25                  # fraction of the model that may be trained here
max_steps = 10_000                # training steps in a round
bytes_per_round = "50 MB"         # of one order, down and up together
bytes_per_day = "2 GB"
seconds_per_round = 300.0         # of one order, by this node's clock
hours = ["22:00-06:00"]           # local time
mains_power_only = true

:mod:`fedplt.engines.flower.node.gate` enforces it.
"""

from __future__ import annotations

import re
from datetime import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveFloat, field_validator

from fedplt.configuration import load_section
from fedplt.errors import ConfigError
from fedplt.fleet import MEMORY, parse_quantity
from fedplt.schema import Section


def _bytes(value: Any) -> Any:
    return round(parse_quantity(MEMORY, value)) if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]


class Limits(Section):
    """What the node may be asked to do; None and empty: anything."""

    max_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Largest fraction of the model that may be trained here."""
    max_steps: Annotated[int, Field(gt=0)] = 1_000_000
    """Largest number of training steps in a round. The default is far above any real round."""
    bytes_per_round: Bytes | None = None
    """Download and upload of an order, a number or a text such as "50 MB"."""
    bytes_per_day: Bytes | None = None
    seconds_per_round: PositiveFloat | None = None
    """After this time, an order is given up."""
    hours: list[str] = []  # noqa: RUF012 (pydantic copies it)
    """When work is allowed, in local time: "22:00-06:00" spans midnight."""
    mains_power_only: bool = False

    @field_validator("hours")
    @classmethod
    def _readable(cls, hours: list[str]) -> list[str]:
        for entry in hours:
            parse_hours(entry)
        return hours


def load_limits(path: str | Path) -> Limits:
    """Read ``limits.toml``; a file that does not exist allows everything."""
    path = Path(path)
    if not path.exists() and not path.is_symlink():
        return Limits()
    if path.exists() and not path.is_file():  # nobody may write into a pipe
        raise ConfigError(f"{path} cannot be read: it is not an ordinary file.")
    return load_section(Limits, path, ConfigError)


def parse_hours(text: str) -> tuple[int, int]:
    """Minutes since midnight of the start and the end of ``"HH:MM-HH:MM"``.

    >>> parse_hours("22:00-06:30")
    (1320, 390)
    """
    match = re.fullmatch(r"\s*(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)\s*", text)
    like = "write it like '22:00-06:00'"
    if match is None:
        raise ValueError(f"{text!r} is no time of the day: {like}.")
    numbers = [int(part) for part in match.groups()]
    start, end = 60 * numbers[0] + numbers[1], 60 * numbers[2] + numbers[3]
    if numbers[1] > 59 or numbers[3] > 59 or start >= 24 * 60 or end > 24 * 60:
        raise ValueError(f"{text!r} has an hour or minute that no day has: {like}.")
    if start == end:
        raise ValueError(f"{text!r} is empty: {like}. The whole day is '00:00-24:00'.")
    return start, end


def within(hours: str, moment: time) -> bool:
    """Whether the moment lies in the hours; the end is not included.

    >>> within("22:00-06:00", time(23, 59)), within("22:00-06:00", time(6, 0))
    (True, False)
    """
    start, end = parse_hours(hours)
    minute = 60 * moment.hour + moment.minute
    return start <= minute < end if start < end else minute >= start or minute < end
