"""The bytes that a node sent and received today, in a file, for the limit ``bytes_per_day``.

It fails closed: if the file is damaged or the clock was set, no bytes are left until the owner
deletes the file.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedplt.errors import RunError
from fedplt.files import open_ordinary, read_file, write_text

LEDGER = "bytes.json"
JUMP_SECONDS = 3600.0
"""Smaller clock corrections are tolerated."""
AWAY_SECONDS = 31 * 86_400.0
"""After a longer pause, a clock that jumped ahead could not be detected."""
LOCK_SECONDS = 10.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Moment(NamedTuple):
    """The node's clock, and the seconds since boot, which users cannot set."""

    local: datetime
    boot: str
    """Id of this boot; empty if the system has none."""
    uptime: float

    @classmethod
    def now(cls) -> Moment:
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts sleep, too
        boot = BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else ""
        return cls(datetime.now().astimezone(), boot, time.clock_gettime(clock))


class _Entry(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    day: str
    bytes: Annotated[int, Field(ge=0)]
    time: Annotated[float, Field(ge=0)]
    boot: str
    uptime: Annotated[float, Field(ge=0)]


def count_bytes(path: Path, number: int, now: Moment) -> int:
    """Add to today's bytes and return their sum; :class:`RunError` if it is unknown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(f".{path.name}.lock")):
        day, used = _today(path, now)
        entry = _Entry(
            day=day.isoformat(), bytes=used + number, time=now.local.timestamp(),
            boot=now.boot, uptime=now.uptime,
        )  # fmt: skip
        write_text(path, json.dumps(entry.model_dump()))
        return entry.bytes


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock on the file; other orders of this node hold it only for milliseconds."""
    file, ends = open_ordinary(path, os.O_RDWR | os.O_CREAT), time.monotonic() + LOCK_SECONDS
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends:
                    why = f"another process has held it for {LOCK_SECONDS:g} s: end it"
                    raise RunError(f"{path} cannot be locked; {why}.") from None
                time.sleep(0.01)
        yield
    finally:
        os.close(file)


def _today(path: Path, now: Moment) -> tuple[date, int]:
    """The current day, and the bytes already used in it."""
    today = now.local.date()
    try:
        entry = _Entry.model_validate_json(read_file(path))
        day = date.fromisoformat(entry.day)
    except FileNotFoundError:
        return today, 0
    except (OSError, RunError, ValueError, ValidationError) as error:
        raise _unknown(path, "the file is damaged") from error
    if why := _clock_problem(entry, now):
        raise _unknown(path, why)
    # A change of the time zone does not end a day early.
    return (today, 0) if today > day else (day, entry.bytes)


def _clock_problem(entry: _Entry, now: Moment) -> str | None:
    passed = now.local.timestamp() - entry.time
    same_boot = bool(entry.boot) and entry.boot == now.boot
    expected = now.uptime - entry.uptime if same_boot else math.nan
    if passed < -JUMP_SECONDS:
        return f"the clock is {_hours(-passed)} behind its last entry"
    if same_boot and abs(passed - expected) > JUMP_SECONDS:
        return f"since its last entry the clock was moved by {_hours(abs(passed - expected))}"
    if not same_boot and passed > AWAY_SECONDS:
        return f"its last entry is {passed / 86_400:.0f} days old"
    return None


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours"


def _unknown(path: Path, why: str) -> RunError:
    return RunError(
        f"no bytes are left for today: the ledger {path} does not show how many were used ({why}). "
        f"The owner of this node sets the clock right and starts the count again with: rm '{path}'"
    )
