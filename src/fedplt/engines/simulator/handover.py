"""What a spawned worker starts with goes through a file, so that nobody waits for the worker.

``multiprocessing`` writes it into a pipe: were the worker stopped before it reads, and the job
larger than the pipe's buffer, the server would wait for ever.
"""

from __future__ import annotations

import os
import tempfile
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import IO, Any, Generic, TypeVar

Value = TypeVar("Value")


class Handover(Generic[Value]):
    """An argument of a process; a forked process has it at once, a spawned one reads the file."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._file: IO[bytes] | None = None  # without a name

    def close(self) -> None:
        """Called after the start: the process has the file."""
        if self._file is not None:
            self._file.close()

    def __getstate__(self) -> Any:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._file.write(ForkingPickler.dumps(self.value))
        self._file.flush()
        return DupFd(self._file.fileno())

    def __setstate__(self, descriptor: Any) -> None:
        with os.fdopen(descriptor.detach(), "rb") as file:
            file.seek(0)
            self.value = ForkingPickler.loads(file.read())
        self._file = None
