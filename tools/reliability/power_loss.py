"""Attack: the power goes at a random moment; the run must resume to the same bits.

A run is recorded: after every sync, rename and removal, what its folder holds and what of it the
disk is sure to have. From a random moment a folder is made that a real disk might be left with:
all that was not synced is lost, or names are there without their data, or some of both. Then the
run is resumed there. ``python -m tools.reliability.power_loss 200 1``.
"""

from __future__ import annotations

import json
import os
import random
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tools.reliability.small_run import make_engine, plain, resume, same_state, small_job, state_of

from fedplt.federation.start import run_job

Names = dict[str, int]
"""File names, and which file each stands for."""


@dataclass
class Moment:
    """The folder at some moment: as the process sees it, and as the disk has it."""

    names: Names
    data: dict[int, bytes]
    synced_names: list[Names]
    """The last synced names, and those after each change since."""
    synced_data: dict[int, bytes]
    folder_synced: bool


@dataclass
class Recorder:
    """Watches a folder through the calls that change what survives."""

    folder: Path
    moments: list[Moment] = field(default_factory=list)
    _files: dict[int, int] = field(default_factory=dict)  # inode -> file
    _names: Names = field(default_factory=dict)
    _data: dict[int, bytes] = field(default_factory=dict)
    _synced_names: list[Names] = field(default_factory=lambda: [{}])
    _synced_data: dict[int, bytes] = field(default_factory=dict)
    _folder_synced: bool = False
    _number: int = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        fsync, replace, unlink = os.fsync, os.replace, os.unlink

        def synced(file: int) -> None:
            self._look()
            fsync(file)
            self._note_synced(os.fstat(file))

        def watched(change: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: Any, **named: Any) -> None:
                self._look()
                change(*arguments, **named)
                self._look()
                self._note()

            return call

        with (
            mock.patch("os.fsync", synced),
            mock.patch("os.replace", watched(replace)),
            mock.patch("os.unlink", watched(unlink)),
        ):
            yield

    def _look(self) -> None:
        """Note names and data as they are now."""
        if not self.folder.is_dir():
            return
        names, files = {}, {}
        for entry in self.folder.iterdir():
            inode = entry.stat().st_ino
            if inode not in self._files:
                self._number += 1
            files[inode] = self._files.get(inode, self._number)
            names[entry.name] = files[inode]
            self._data[files[inode]] = entry.read_bytes()
        self._files = files
        if names != self._names:
            self._names = names
            self._synced_names.append(names)

    def _note_synced(self, about: os.stat_result) -> None:
        if stat.S_ISDIR(about.st_mode):
            if self.folder.is_dir() and about.st_ino == self.folder.stat().st_ino:
                self._synced_names = [self._names]
            elif about.st_ino == self.folder.parent.stat().st_ino and self.folder.is_dir():
                self._folder_synced = True
        elif about.st_ino in self._files:
            file = self._files[about.st_ino]
            self._synced_data[file] = self._data[file]
        self._note()

    def _note(self) -> None:
        self.moments.append(
            Moment(
                self._names, dict(self._data), list(self._synced_names), dict(self._synced_data),
                self._folder_synced,
            )
        )  # fmt: skip


def left_behind(moment: Moment, way: str, draw: random.Random) -> dict[str, bytes]:
    """The files that a disk may be left with."""
    if not moment.folder_synced and way != "names without data":
        return {}  # the folder itself is lost
    if way == "unsynced lost":
        names = moment.synced_names[0]
    elif way == "names without data":
        names = moment.names
    else:
        names = draw.choice(moment.synced_names)
    files = {}
    for name, file in names.items():
        sure, written = moment.synced_data.get(file, b""), moment.data[file]
        if way == "some of both" and written.startswith(sure):
            stop = draw.randint(len(sure), len(written))
            zeros = draw.choice([0, 0, draw.randint(0, 4096)])  # a block that was never written
            files[name] = written[:stop] + b"\0" * min(zeros, len(written) - stop)
        else:
            files[name] = sure
    return files


WAYS = ("unsynced lost", "names without data", "some of both")


def run(count: int, seed: int) -> dict[str, int]:
    """Cut the power ``count`` times."""
    draw = random.Random(seed)
    figures = dict.fromkeys(
        ["power cuts", "resumed to the same bits", "refused: cut before the first round",
         "other bits", "not resumed", "rounds reported without a record"], 0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Recorder(Path(scratch) / "runs" / "run")
        job = small_job()
        begun: list[int] = []
        """How many moments there were after each round."""
        with recorder.recording():
            history = run_job(
                job, recorder.folder, engine=make_engine,
                on_round=lambda _: begun.append(len(recorder.moments)),
            )  # fmt: skip
        state, records = state_of(job), plain(history)
        for number in range(count):
            when = draw.randrange(len(recorder.moments))
            files = left_behind(recorder.moments[when], draw.choice(WAYS), draw)
            copy = Path(scratch) / str(number)
            copy.mkdir()
            for name, data in files.items():
                (copy / name).write_bytes(data)
            found = resume(copy)
            figures["power cuts"] += 1
            if found.refused:
                early = when < begun[0]
                figures["refused: cut before the first round" if early else "not resumed"] += 1
            elif same_state(found.values[0], state):
                figures["resumed to the same bits"] += 1
                lost = found.values[1] != records
                figures["rounds reported without a record"] += lost and any(
                    "no record of" in text for text in found.messages
                )
            else:
                figures["other bits"] += 1
    return figures


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2])), indent=1))
