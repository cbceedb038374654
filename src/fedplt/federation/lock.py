"""A lock for one writer per folder, across processes and within this process."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import IO
from weakref import WeakValueDictionary

from fedplt.errors import RunError

LOCK = ".lock"

_held: WeakValueDictionary[Path, IO[str]] = WeakValueDictionary()
_holding = threading.Lock()


def take_lock(folder: Path) -> IO[str]:
    """Become the only writer until the returned file is closed; raise if there is another."""
    with _holding:
        key = folder.resolve()
        mine = _held.get(key)
        if mine is not None and not mine.closed:
            # Checked here: opening and closing the file again would release the record lock.
            raise _in_use(folder, str(os.getpid()))
        _held[key] = lock = _lock_file(folder)
        return lock


def _lock_file(folder: Path) -> IO[str]:
    try:
        lock = (folder / LOCK).open("a+")
    except OSError as error:
        raise RunError(f"{folder} cannot be written to: {error.strerror}") from error
    try:
        # A record lock belongs to this process alone: workers that outlive it briefly do not
        # hold it, so a killed run can be resumed at once.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        owner = lock.read().strip() or "(unknown)"
        lock.close()
        raise _in_use(folder, owner) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _in_use(folder: Path, owner: str) -> RunError:
    return RunError(f"{folder} is in use by process {owner}. Wait for it, or stop it first.")
