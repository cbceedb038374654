"""Attack: files of a run folder are changed; this is noticed, or it changes nothing.

Every file is damaged in many ways: flipped bits, lost and doubled parts, zeros, another run's
file, an earlier file of the same run, lost lines, a pipe, changed numbers, also such as carry a
right seal. Then the folder is read as for a report, its model is loaded and evaluated, and the run
is resumed: each of them must notice, or give what it gave before.
``python -m tools.reliability.damage 360 1``.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tools.reliability.small_run import (
    Seen,
    broken_run,
    copy_of,
    extended_run,
    look,
    resume,
    same_state,
    whole_run,
)

from fedplt.federation.run_folder.sealed import (
    load_tensors,
    open_json,
    run_of,
    save_tensors,
    seal_json,
)

SECONDS = 60
"""For reading and resuming a damaged run."""
KINDS = {
    "plan.json": "plan", "metric.json": "metric", "result.json": "result",
    "rounds.jsonl": "record", "sessions.json": "sessions", "devices.json": "devices",
}  # fmt: skip
CHECKPOINTS = ("checkpoint.safetensors", "checkpoint.previous.safetensors")
FILES = (
    "config.toml", *KINDS, *CHECKPOINTS, "model.safetensors", "last.safetensors",
    "best.safetensors", ".lock",
)  # fmt: skip

Damage = Callable[[bytes, random.Random, bytes], bytes]
"""From a file's bytes and those of another run's."""


def _flip(data: bytes, draw: random.Random, other: bytes) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


def _cut(data: bytes, draw: random.Random, other: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def _zeros(data: bytes, draw: random.Random, other: bytes) -> bytes:
    start = draw.randrange(len(data))
    number = min(len(data) - start, draw.choice([1, 16, 512, 4096]))
    return data[:start] + b"\0" * number + data[start + number :]


def _nothing_but_zeros(data: bytes, draw: random.Random, other: bytes) -> bytes:
    return b"\0" * len(data)


def _doubled(data: bytes, draw: random.Random, other: bytes) -> bytes:
    start, stop = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:stop] + data[start:stop] + data[stop:]


def _lost(data: bytes, draw: random.Random, other: bytes) -> bytes:
    start, stop = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:start] + data[stop:]


def _digit(data: bytes, draw: random.Random, other: bytes) -> bytes:
    places = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
    if not places:
        return _flip(data, draw, other)
    place = draw.choice(places)
    return data[:place] + str(draw.randrange(10)).encode() + data[place + 1 :]


def _lines(data: bytes, draw: random.Random, other: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    draw.shuffle(lines)
    return b"".join(lines[: draw.randint(1, len(lines))])


def _some_lines(data: bytes, draw: random.Random, other: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(line for line in lines if draw.random() < 0.7)


def _other_run(data: bytes, draw: random.Random, other: bytes) -> bytes:
    return other


def _noise(data: bytes, draw: random.Random, other: bytes) -> bytes:
    return draw.randbytes(draw.randrange(2 * len(data)))


DAMAGES: list[Damage] = [
    _flip, _flip, _flip, _cut, _zeros, _nothing_but_zeros, _doubled, _lost, _digit, _lines,
    _some_lines, _other_run, _noise,
]  # fmt: skip
MAY_BE: dict[str, tuple[type, ...]] = {
    "loss": (int, float, type(None)), "score": (int, float, type(None)), "train_loss": (int, float),
    "sampling": (type(None),), "diagnostics": (type(None),),
}  # fmt: skip
"""Fields of a record of which every such value is possible: with a right seal, it is a forgery."""
ODD: list[Any] = [None, True, -1, 2.5, 1e300, 10**400, "x", "\0", [], [[]], {}, {"a": 1}]


def _resealed_checkpoint(path: Path, draw: random.Random) -> str:
    """Another type or shape, or a value that no run writes, with a right seal; returns which."""
    tensors, about = load_tensors(path, "checkpoint")
    run, state, what = about.pop("run"), tensors["state"], "state"
    if draw.random() < 0.5:
        what = draw.choice(sorted(about))
        about[what] = draw.choice(ODD)
    else:
        tensors["state"] = draw.choice([state.double(), state[:-1], torch.zeros(0), state.half()])
    save_tensors(path, tensors, about, run, "checkpoint")
    return what


def _resealed_text(path: Path, draw: random.Random) -> str:
    """A field with a value that no run writes, with a right seal; returns which."""
    kind = KINDS[path.name]
    *lines, last = (
        path.read_text().rstrip("\n").split("\n") if kind == "record" else [path.read_text()]
    )
    run = run_of(last, kind, path)
    values = open_json(last, kind, path)
    key = draw.choice(sorted(values))
    possible = MAY_BE.get(key, ()) if kind == "record" else ()
    values[key] = draw.choice([odd for odd in ODD if odd != 10**400 and type(odd) not in possible])
    end = "\n" if kind == "record" else ""
    path.write_text("\n".join([*lines, seal_json(values, run, kind)]) + end)
    return f"{key} = {values[key]!r}"


def damage(folder: Path, other: Path, draw: random.Random, earlier: Path | None = None) -> str:
    """Damage one file; return what was done. ``earlier``: the folder as it was before."""
    name = draw.choice([name for name in FILES if (folder / name).exists()])
    path = folder / name
    if draw.random() < 0.06:
        path.unlink()
        os.mkfifo(path)
        return f"{name}: a pipe"
    if earlier is not None and name != "sessions.json" and draw.random() < 0.2:
        names = draw.choice([[name], ["model.safetensors", "result.json"], ["rounds.jsonl"]])
        for each in names:
            shutil.copy(earlier / each, folder / each)
        return f"{' and '.join(names)}: of an earlier moment"
    if draw.random() < 0.2 and name in (*KINDS, *CHECKPOINTS):
        what = (_resealed_checkpoint if name in CHECKPOINTS else _resealed_text)(path, draw)
        return f"{name}: {what}, sealed"
    change = draw.choice(DAMAGES)
    foreign = (other / name).read_bytes() if (other / name).exists() else b""
    path.write_bytes(change(path.read_bytes() or b"?", draw, foreign))
    return f"{name}: {change.__name__.strip('_')}"


def run(count: int, seed: int) -> dict[str, int]:
    """Damage ``count`` files; those that go unnoticed are printed to standard error."""
    draw = random.Random(seed)
    figures = dict.fromkeys(["files damaged", "noticed", "harmless", "unnoticed", "tracebacks"], 0)
    with tempfile.TemporaryDirectory() as scratch, _deadlines() as begin:
        place = Path(scratch)
        extended_run(place / "whole", place / "earlier")
        broken_run(place / "broken")
        whole_run(place / "other", seed=7)
        goal = resume(copy_of(place / "broken", place / "copy"))
        for _ in range(count):
            source = place / draw.choice(["whole", "broken"])
            before, copy = look(source), copy_of(source, place / "copy")
            earlier = place / "earlier" if source.name == "whole" else None
            what = f"{source.name}, {damage(copy, place / 'other', draw, earlier)}"
            try:
                begin()
                found = _outcome(before, look(copy), resume(copy), goal, earlier is not None)
            except Exception:
                found = "tracebacks"
                what += f"\n{traceback.format_exc()}"
            figures["files damaged"] += 1
            figures[found] += 1
            if found in ("unnoticed", "tracebacks"):
                print(f"{found}: {_words(what)}", file=sys.stderr, flush=True)
    return figures


@contextmanager
def _deadlines() -> Iterator[Callable[[], object]]:
    """Gives a function that restarts the clock; a reader that waits too long fails."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"no answer in {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    try:
        yield lambda: signal.alarm(SECONDS)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _outcome(before: Seen, read: Seen, resumed: Seen, goal: Seen, ended: bool) -> str:
    # Who reads a finished run must notice without resuming it.
    if ended and not read.messages and read.values != before.values:
        return "unnoticed"
    messages = read.messages + resumed.messages
    ended_well = not resumed.refused and same_state(resumed.values[0], goal.values[0])
    if not resumed.refused and not ended_well:
        return "unnoticed"
    if not (messages or read.refused or _is_earlier(read, before)):
        return "unnoticed"
    if messages:
        return "noticed"
    return "harmless" if resumed.values[1] == goal.values[1] else "unnoticed"


def _is_earlier(read: Seen, before: Seen) -> bool:
    """The same, but for last records: so it looks if a run is killed a little earlier."""
    (records, _), *rest = read.values
    (all_records, _), *all_rest = before.values
    return bool(records == all_records[: len(records)] and rest == all_rest)


def _words(text: str) -> str:
    return re.sub(r"/tmp/\S*/", "", text)


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2])), indent=1))
