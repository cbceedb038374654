"""Find the folders of runs, and read from each just enough for a list."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fedplt.errors import DamagedError, FedpltError
from fedplt.federation import RoundRecord, RunFolder, read_metric
from fedplt.files import open_ordinary
from fedplt.text import duration_text

MAX_DEPTH = 4
MAX_FOLDERS = 20_000
"""Folders that are looked into: a wrong folder (a whole disk) does not take forever."""
TAIL = 1 << 20
"""Bytes at the end of the records among which the last round is."""


@dataclass(frozen=True)
class ListedRun:
    """One line of the list."""

    name: str
    method: str = ""
    seed: str = ""
    rounds: str = ""
    score: str = ""
    state: str = ""
    updated: float = 0.0
    """When something was last written, in seconds since 1970."""


def find_runs(folder: Path) -> dict[str, Path]:
    """Folders of runs below a folder, by their path in it; links are not followed."""
    return {path.relative_to(folder).as_posix(): path for path in _walk(folder)}


def _walk(folder: Path) -> Iterator[Path]:
    walk = islice(os.walk(folder, followlinks=False), MAX_FOLDERS)
    for place, inner, files in walk:
        path = Path(place)
        inner.sort()
        if "config.toml" in files and "plan.json" in files:
            inner.clear()
            yield path
        elif len(path.relative_to(folder).parts) >= MAX_DEPTH:
            inner.clear()


def listed_run(name: str, path: Path) -> ListedRun:
    """What the list says of a run; the problem, if it cannot be read."""
    records = path / "rounds.jsonl"
    updated = max((f.stat().st_mtime for f in (records, path) if f.exists()), default=0.0)
    try:
        config, last = RunFolder.open(path).config(), last_record(records)
    except FedpltError as error:
        return ListedRun(name, state=str(error), updated=updated)
    done = last.round if last else 0
    finished = (path / "result.json").is_file()
    ago = duration_text(max(0.0, time.time() - updated))
    return ListedRun(
        name,
        str(config.method["name"]),
        str(config.seed),
        f"{done} of {config.rounds}",
        _score(path, last) if last else "",
        "finished" if finished else f"last written {ago} ago",
        updated,
    )


def _score(path: Path, record: RoundRecord) -> str:
    if record.score is None:
        return ""
    return read_metric(path, RunFolder.open(path).run).text(record.score, 1)


def last_record(path: Path) -> RoundRecord | None:
    """The last complete record of a run, read from the end of its file."""
    try:
        with os.fdopen(open_ordinary(path), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read(TAIL).split(b"\n")
    except (OSError, DamagedError):
        return None
    for line in reversed(lines):
        try:
            values = json.loads(line)
            values.pop("seal", None)  # the page of the run checks it
            return RoundRecord.from_json(values)
        except (ValueError, TypeError, KeyError, AttributeError, FedpltError):
            continue  # empty, incomplete, or cut at its start
    return None
