"""What a node's owner allows: ``limits.toml`` beside ``node.toml``. A missing key allows all.

max_ratio = 0.25                  # fraction of the model that may be trained here
bytes_per_round = "50 MB"         # down and up together
bytes_per_day = "2 GB"
seconds_per_round = 300.0
hours = ["22:00-06:00"]           # local time
mains_power_only = true
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveFloat, field_validator

from fedplt.configuration import Section, parse_toml, read_text, validate
from fedplt.errors import ConfigError
from fedplt.fleet import MEMORY, parse_quantity
from fedplt.text import bytes_text, seconds_text


def _bytes(value: Any) -> Any:
    return round(parse_quantity(MEMORY, value)) if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]


class Limits(Section):
    """What the node may be asked to do; None and empty: anything."""

    max_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Largest fraction of the model that may be trained here."""
    bytes_per_round: Bytes | None = None
    """Download and upload of a round, a number or a text such as "50 MB"."""
    bytes_per_day: Bytes | None = None
    seconds_per_round: PositiveFloat | None = None
    hours: list[str] = []  # noqa: RUF012 (pydantic copies it)
    """When training is allowed, in local time: "22:00-06:00" spans midnight."""
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
    if not path.exists():
        return Limits()
    text = read_text(path, ConfigError)
    values = parse_toml(text, path, ConfigError)
    return validate(Limits, values, ConfigError, text=text, where=str(path))


def refusal(
    limits: Limits,
    *,
    node: str,
    ratio: float,
    bytes_down: int,
    bytes_up: int,
    expected_seconds: float | None,
    now: datetime,
    on_mains: bool,
    bytes_today: int | None = 0,
) -> str | None:
    """Why the node's owner does not allow this round, in a sentence; None: allowed.

    ``bytes_today`` is what :func:`fedplt.engines.flower.ledger.bytes_used` says; None means that
    the ledger is damaged. ``now`` is local time.

    >>> refusal(Limits(max_ratio=0.25), node="n3", ratio=0.5, bytes_down=0, bytes_up=0,
    ...         expected_seconds=None, now=datetime(2026, 1, 31), on_mains=True)
    'node n3 does not allow more than 0.25 of the model (limits.toml: max_ratio); it was asked
    for 0.5'
    """
    first = next(
        itertools.chain(
            _size_problems(limits, ratio, bytes_down + bytes_up, bytes_today),
            _time_problems(limits, expected_seconds, now, on_mains),
        ),
        None,
    )
    if first is None:
        return None
    allowed, key, asked = first
    return f"node {node} does not allow {allowed} (limits.toml: {key}); {asked}"


_Problem = tuple[str, str, str]
"""What is not allowed, the key that says so, and what was asked."""


def _size_problems(
    limits: Limits, ratio: float, moved: int, today: int | None
) -> Iterator[_Problem]:
    if limits.max_ratio is not None and ratio > limits.max_ratio:
        allowed = f"more than {limits.max_ratio:.3g} of the model"
        yield allowed, "max_ratio", f"it was asked for {ratio:.3g}"
    if limits.bytes_per_round is not None and moved > limits.bytes_per_round:
        allowed = f"more than {bytes_text(limits.bytes_per_round)} in a round"
        yield allowed, "bytes_per_round", f"this one takes {bytes_text(moved)}"
    if limits.bytes_per_day is not None:
        allowed = f"more than {bytes_text(limits.bytes_per_day)} in a day"
        if today is None:
            asked = (
                "how much was used today is not known, since the ledger in its state folder is "
                "damaged. Delete the ledger to start from 0, or wait until tomorrow"
            )
            yield allowed, "bytes_per_day", asked
        elif today + moved > limits.bytes_per_day:
            asked = f"this round takes {bytes_text(moved)} after {bytes_text(today)} today"
            yield allowed, "bytes_per_day", asked


def _time_problems(
    limits: Limits, expected_seconds: float | None, now: datetime, on_mains: bool
) -> Iterator[_Problem]:
    longest = limits.seconds_per_round
    if longest is not None and expected_seconds is not None and expected_seconds > longest:
        allowed = f"more than {seconds_text(longest)} s in a round"
        asked = f"this one is expected to take {seconds_text(expected_seconds)} s"
        yield allowed, "seconds_per_round", asked
    if limits.hours and not any(within(entry, now.time()) for entry in limits.hours):
        allowed = f"training outside {', '.join(limits.hours)}"
        yield allowed, "hours", f"its clock says {now:%H:%M}"
    if limits.mains_power_only and not on_mains:
        yield "training on battery", "mains_power_only", "it is not on mains power"


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
