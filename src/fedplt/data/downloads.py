"""Fetch one file from a web address (digest, size and time are checked), and unpack an archive."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import threading
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit

CONNECT_SECONDS = 20
REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 5
DOWNLOAD_SECONDS = 3600
"""For a whole file, so that a server that sends a byte now and then does not hold us for ever."""

Progress = Callable[[str, int, int | None], None]
"""Called with what is fetched, bytes so far, and bytes in total (where known)."""


class SourceError(Exception):
    """This source cannot be used here; the message says why."""


@dataclass(frozen=True)
class KnownFile:
    """A published file. Whoever serves it, over whatever connection, only these bytes are used."""

    name: str
    size: int
    sha256: str

    def check(self, path: Path) -> None:
        """Refuse any other file, before anything reads it."""
        if path.is_symlink() or not path.is_file():
            raise SourceError(f"{path.name} is not a regular file")
        size = path.stat().st_size
        if size != self.size:
            raise SourceError(f"{self.name} has {size:,} bytes, not {self.size:,}")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise SourceError(f"{self.name} has the SHA-256 digest {found}, not {self.sha256}")


def download(address: str, known: KnownFile, folder: Path, progress: Progress) -> Path:
    """Fetch a file into a folder and check it; raise :class:`SourceError` if that is not it."""
    target, problem = folder / known.name, []
    ended, given_up = threading.Event(), threading.Event()

    def fetch() -> None:
        try:
            _fetch(address, known, target, progress, given_up)
        except Exception as error:  # a hostile reply can break any layer of urllib
            problem.append(f"{address}: {getattr(error, 'reason', error) or type(error).__name__}")
        finally:
            ended.set()

    # In a thread, as no timeout of urllib is for a whole reply.
    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    try:
        if not ended.wait(DOWNLOAD_SECONDS):
            raise SourceError(f"{address}: not complete after {DOWNLOAD_SECONDS} s")
    finally:
        given_up.set()
    if problem:
        raise SourceError(problem[0])
    known.check(target)
    return target


def _fetch(
    address: str, known: KnownFile, target: Path, progress: Progress, given_up: threading.Event
) -> None:
    done = 0
    with _open(address) as reply, target.open("wb") as out:
        while (block := reply.read1(1 << 20)) and not given_up.is_set():
            done += len(block)
            if done > known.size:
                raise SourceError(f"it sends more than the {known.size:,} bytes of {known.name}")
            out.write(block)
            progress(known.name, done, known.size)
    if done < known.size:
        raise SourceError(f"the connection ended after {done:,} of {known.size:,} bytes")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """urllib's own redirects first read the whole reply, however long it is."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _open(address: str) -> HTTPResponse:
    opener = urllib.request.build_opener(_NoRedirects)
    for _ in range(MOST_REDIRECTS + 1):
        if urlsplit(address).scheme not in ("http", "https"):
            raise SourceError(f"a redirection to {address[:100]} is not allowed")
        request = urllib.request.Request(address, headers={"User-Agent": "fedplt"})
        try:
            reply: HTTPResponse = opener.open(request, timeout=CONNECT_SECONDS)
        except HTTPError as error:
            error.close()
            if error.code not in REDIRECTS or not error.headers.get("Location"):
                raise
            address = urljoin(address, error.headers["Location"])
        else:
            return reply
    raise SourceError("too many redirections")


OTHER_BYTES = 1 << 26
"""So much of an archive may be something else: headers, documentation, padding."""


class Readable(Protocol):
    """A binary file, decompressed on the way or not."""

    def read(self, size: int, /) -> bytes: ...


def copy_members(archive: Readable, wanted: Mapping[str, int], folder: Path, name: str) -> None:
    """Copy regular files out of a decompressed archive, by their base names, into ``folder``.

    ``wanted`` gives their names and their largest sizes. The folders that the archive names are
    ignored, and so are links, devices and all other members: nothing is written outside ``folder``.
    The archive is a stream, read no further than the wanted files reach in an honest one.
    """
    missing = set(wanted)
    limited = _Limited(archive, sum(wanted.values()) + OTHER_BYTES)
    try:
        with tarfile.open(fileobj=limited, mode="r|") as members:
            for member in members:
                base = member.name.rsplit("/", 1)[-1]
                regular = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
                if base not in missing or not regular or member.issparse():
                    continue
                if member.size > wanted[base]:
                    raise SourceError(f"{base} has {member.size:,} bytes, too many")
                content = members.extractfile(member)
                assert content is not None
                with (folder / base).open("wb") as out:
                    shutil.copyfileobj(content, out)
                missing.discard(base)
                if not missing:
                    return
    except Exception as error:  # tarfile can fail in any way at what is no archive
        raise SourceError(f"{name} cannot be unpacked: {error}") from error
    raise SourceError(f"{name} does not hold {', '.join(sorted(missing))}")


class _Limited(io.RawIOBase):
    """A stream that is an error where it becomes too long, or is read beyond its end.

    tarfile would read on and on for a member that claims to be huge.
    """

    def __init__(self, stream: Readable, limit: int) -> None:
        self._stream, self._left, self._after_end = stream, limit, 0

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > self._left:
            raise SourceError("it is larger than the published one")
        data = self._stream.read(size)
        self._left -= len(data)
        self._after_end += not data
        if self._after_end > 10:
            raise SourceError("it ends too early")
        return data
