"""Attack: replies and archives of a hostile server, damaged or invented, none of which is accepted.

``python -m tools.reliability.hostile_downloads 500 1`` makes 500 attacks with seed 1. Each must end
with a reason, within 10 seconds, with nothing written outside of the folder, and with no more bytes
in it than the published files have.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import random
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.support.servers import known, member, ok, serving, tar

from fedplt.data.downloads import SourceError, copy_members, download

CONTENT = random.Random(0).randbytes(5000)
WANTED = {"data_batch_1.bin": 5000}
KINDS = [
    tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE,
    tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE,
]  # fmt: skip
NAMES = [
    "data_batch_1.bin",
    "../data_batch_1.bin",
    "/outside/data_batch_1.bin",
    "x",
    "x/../../y",
    "",
]
HEADERS = [
    b"Content-Length: lots", b"Content-Length: -5", b"Content-Length: " + b"9" * 5000,
    b"Transfer-Encoding: chunked", b"Location: file:///etc/passwd", b"Location: //[", b"\xff: \xff",
    b"Content-Encoding: gzip", b"Set-Cookie: " + b"x" * 60_000, b"no colon",
]  # fmt: skip


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Bytes changed, cut off, or repeated."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 20)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    way = draw.randrange(3)
    if way == 0:
        return bytes(changed[: draw.randrange(len(changed))])
    return bytes(changed) if way == 1 else data + bytes(changed)


def a_reply(draw: random.Random) -> Iterable[bytes]:
    """A reply with odd headers and a damaged, short, long or endless body."""
    status = draw.choice([b"200 OK", b"206 P", b"302 F", b"404 N", b"999", b"abc", b""])
    headers = b"\r\n".join(draw.sample(HEADERS, draw.randint(0, 3)))
    head = b"HTTP/1.1 " + status + b"\r\n" + headers + b"\r\n\r\n"
    if draw.random() < 0.2:
        return itertools.chain([head], itertools.repeat(draw.randbytes(10_000)))
    if draw.random() < 0.3:
        return [damaged(ok(CONTENT), draw)]
    return [head, damaged(CONTENT, draw)]


def an_archive(draw: random.Random) -> bytes:
    """An archive of odd members, damaged or not."""
    members = []
    for _ in range(draw.randint(1, 5)):
        content = draw.randbytes(draw.choice([0, 5000, 6000, 100_000]))
        kind = draw.choice(KINDS)
        about = {"type": kind, "linkname": draw.choice(NAMES)}
        if draw.random() < 0.3:
            about["pax_headers"] = {draw.choice(["size", "path", "GNU.sparse.map"]): "9" * 30}
        members.append(member(draw.choice(NAMES), content, **about))
    data = tar(members)
    return damaged(data, draw) if draw.random() < 0.5 else data


def attack_by_reply(draw: random.Random, folder: Path) -> None:
    with serving(a_reply(draw)) as site:
        download(f"{site}/file", known("file", CONTENT), folder, lambda *_: None)


def attack_by_archive(draw: random.Random, folder: Path) -> None:
    """An archive whose digest is right: as if the published one were hostile."""
    packed = gzip.compress(an_archive(draw), 1)
    if draw.random() < 0.3:
        packed = damaged(packed, draw)
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as archive:
        copy_members(archive, WANTED, folder, "archive")


def run(count: int, seed: int) -> dict[str, int]:
    """Make ``count`` attacks; held are those that end in time and write nothing elsewhere."""
    draw = random.Random(seed)
    figures = {"attacks": 0, "held": 0}
    for _ in range(count):
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "scratch"
            folder.mkdir()
            began = time.monotonic()
            attack = draw.choice([attack_by_reply, attack_by_archive])
            with contextlib.suppress(SourceError):
                attack(draw, folder)
            written = [path for path in Path(parent).rglob("*") if path != folder]
            figures["attacks"] += 1
            figures["held"] += (
                time.monotonic() - began < 10
                and all(p.parent == folder and p.is_file() and not p.is_symlink() for p in written)
                and sum(path.stat().st_size for path in written) <= 5000
            )
    return figures


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
