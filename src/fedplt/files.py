"""File writes that survive a crash and a power loss.

A file is written under a temporary name, synced, renamed, and then its folder is synced: whenever
the power goes, the disk has the old file or the new one, never a part of one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from fedplt.errors import DamagedError, FedpltError

SCRATCH = ".*.[0-9]*.part"
"""Temporary files that a killed process leaves behind."""
PRIVATE = 0o600
"""The mode of a file that only its owner may read and write."""


def a_path(given: object, name: str, error: type[FedpltError]) -> Path:
    """A path; raises ``error`` for what is none, such as a number."""
    if isinstance(given, (str, Path)):
        return Path(given)
    raise error(f"{name}: {given!r:.60} is a {type(given).__name__}; give a path.")


def write_atomically(
    path: Path,
    write: Callable[[Path], object],
    *,
    previous: Path | None = None,
    private: bool = False,
) -> None:
    """Call ``write`` with a temporary path in the same folder, then rename it to ``path``.

    With ``previous``, the replaced file gets that name. ``private``: only the owner may read
    either of them, at any moment and with any umask.
    """
    make_folder(path.parent)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        mode = _new_file(scratch, private)  # it replaces a link that was left here
        write(scratch)
        scratch.chmod(mode)
        sync(scratch)
        if previous is not None and path.exists():
            if private:
                path.chmod(mode)
            _keep_as(path, previous)
        scratch.replace(path)
        sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def _keep_as(path: Path, previous: Path) -> None:
    """Give a file a second name, so that its first one is never missing."""
    link = previous.with_name(f".{previous.name}.{os.getpid()}.part")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link, follow_symlinks=False)
    except OSError:  # a file system without hard links
        path.replace(previous)
    else:
        link.replace(previous)


def _new_file(path: Path, private: bool) -> int:
    """Create an empty file; return its mode, which some writers change."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, PRIVATE if private else 0o666)
    try:
        if private:
            os.fchmod(file, PRIVATE)  # the umask may have taken the owner's bits away
        return stat.S_IMODE(os.fstat(file).st_mode)
    finally:
        os.close(file)


def open_ordinary(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file, as ``os.open``; refuse what is none.

    A pipe or a device, put in the place of a file, would make its reader wait forever.
    """
    try:
        # Looked at first: to open a device may have effects. A pipe is opened without waiting.
        if path.exists() and not path.is_file():
            raise _no_file(path)
        file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe without a reader
            raise _no_file(path) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _no_file(path)
    return file


def _no_file(path: Path) -> DamagedError:
    return DamagedError(f"{path} cannot be read: it is not an ordinary file. Delete it.")


def read_file(path: Path) -> bytes:
    """The bytes of an ordinary file."""
    with os.fdopen(open_ordinary(path), "rb") as file:
        return file.read()


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    write_atomically(path, lambda scratch: scratch.write_text(text, "utf-8"), private=private)


def append_text(path: Path, text: str) -> None:
    """Append to a file that is no link; :func:`sync` makes what was appended survive."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(open_ordinary(path, flags), "a", encoding="utf-8") as out:
        out.write(text)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, and sync the folders that hold the new ones."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_folder(folder.parent)


def remove_scratch(folder: Path) -> None:
    """Remove the temporary files of processes that were killed."""
    for scratch in folder.glob(SCRATCH):
        scratch.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until the disk has what was written to a file."""
    _sync(open_ordinary(path, os.O_RDONLY | os.O_NOFOLLOW))


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder."""
    _sync(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def _sync(file: int) -> None:
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(file)
