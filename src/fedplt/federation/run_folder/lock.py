"""A lock for one writer per folder, across processes and within this process."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import IO
from weakref import WeakValueDictionary

from fedplt.errors import RunError
from fedplt.files import open_ordinary

LOCK = ".lock"

_held: WeakValueDictionary[Path, IO[str]] = WeakValueDictionary()
_holding = threading.Lock()


def take_lock(folder: Path) -> IO[str]:
    """Become the only writer until the returned file is closed; raise if there is another."""
    with _holding:
        key = folder.resolve()
        mine = _held.get(key)
        if mine is not None and not mine.closed:
            # Check before opening: closing a second handle of the file would release the lock.
            raise _in_use(folder, str(os.getpid()))
        _held[key] = lock = _lock_file(folder)
        return lock


def _lock_file(folder: Path) -> IO[str]:
    path, flags = folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        lock = os.fdopen(open_ordinary(path, flags), "r+", errors="replace")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RunError(f"{path} is a link, which is not followed: delete it.") from error
        raise RunError(f"{folder} cannot be written to: {error.strerror}") from error
    try:
        # A record lock belongs to this process alone: workers that outlive it briefly do not
        # hold it, so a killed run can be resumed at once.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = lock.read(20).strip()
        owner = owner if owner.isdecimal() else "(unknown)"
        lock.close()
        raise _in_use(folder, owner) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def is_of(lock: IO[str], folder: Path) -> bool:
    """Whether the lock file is still in this folder: it may be moved away during a run."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), (folder / LOCK).lstat())
    except OSError:
        return False


def _in_use(folder: Path, owner: str) -> RunError:
    return RunError(f"{folder} is in use by process {owner}. Wait for it, or stop it first.")
