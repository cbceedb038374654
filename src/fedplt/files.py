"""Atomic file writes: a crash leaves the old file or the new one, never a partial one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write`` with a temporary path in the same folder, then rename it to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        mode = _new_file_mode(scratch)
        write(scratch)
        scratch.chmod(mode)
        with scratch.open("rb") as written:
            os.fsync(written.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _new_file_mode(path: Path) -> int:
    """The mode that the umask gives a new file: some writers make private files whatever it is."""
    path.unlink(missing_ok=True)
    path.touch(exist_ok=False)
    mode = stat.S_IMODE(path.stat().st_mode)
    path.unlink()
    return mode


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))
