"""How many bytes a node moved on which day: a small JSON file in its state folder."""

from __future__ import annotations

import fcntl
import json
from datetime import date
from pathlib import Path

from fedplt.files import write_text

LEDGER = "bytes.json"
DAYS = 31
"""Older days are forgotten."""


def bytes_used(path: Path, day: date) -> int | None:
    """What was moved on this day; None: the file is damaged, and of this day."""
    days = _read(path)
    if days is None:
        # What a file of an earlier day held does not matter today.
        return None if date.fromtimestamp(path.stat().st_mtime) >= day else 0
    return days.get(day.isoformat(), 0)


def add_bytes(path: Path, day: date, number: int) -> None:
    """Add to what was moved on this day. A damaged file of this day stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held for milliseconds, by other rounds of this node
        used = bytes_used(path, day)
        if used is None:
            return
        days = {**(_read(path) or {}), day.isoformat(): used + number}
        write_text(path, json.dumps(dict(sorted(days.items())[-DAYS:])))


def _read(path: Path) -> dict[str, int] | None:
    """Bytes by day; None: damaged."""
    try:
        days = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
    if not isinstance(days, dict) or not all(
        type(number) is int and number >= 0 for number in days.values()
    ):
        return None
    return days
