"""How the server and its worker processes exchange data.

Messages go over a socket, the job of a spawned worker through a file, and tensors through shared
memory.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import IO, Any, Generic, TypeVar

import torch
from torch import Tensor

from fedplt.errors import RunError
from fedplt.federation import Job, most_numbers
from fedplt.kernels import read_state, take
from fedplt.text import bytes_text

POLL_SECONDS = 0.2
SHARED_FOLDER = "/dev/shm"
"""Where Linux stores shared memory."""
_LENGTH = struct.Struct("!Q")
Value = TypeVar("Value")


class Connection:
    """One end of a socket. Messages are pickled: both ends are processes of this run.

    While a call waits, it calls ``waiting`` about every 0.2 seconds; ``waiting`` may raise to give
    up. So a call ends even if the other process dies or stops in the middle of a message, or if a
    third process holds the other end open.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self.messages: deque[Any] = deque()
        """Complete messages, read from the socket but not yet returned."""
        self._read = bytearray()
        self._ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes, waiting: Callable[[], None] = lambda: None) -> None:
        """Send a message from :func:`encode`; raise OSError if the other end is closed."""
        rest = memoryview(_LENGTH.pack(len(message)) + message)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                # Read as well: the other end may wait for us to read before it does.
                self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE)
                self._fill()
                waiting()

    def receive(self) -> list[Any]:
        """All messages that have arrived; raise EOFError once the other end is closed."""
        self._fill()
        if self._ended and not self.messages:
            raise EOFError
        return [self.messages.popleft() for _ in range(len(self.messages))]

    def wait(self, waiting: Callable[[], None] = lambda: None) -> Any:
        """The next message; raise EOFError once the other end is closed."""
        self._fill()
        while not self.messages:
            if self._ended:
                raise EOFError
            self._wait(selectors.EVENT_READ)
            waiting()
            self._fill()
        return self.messages.popleft()

    def close(self) -> None:
        self._socket.close()

    def _fill(self) -> None:
        """Read what has arrived."""
        try:
            while not self._ended:
                block = self._socket.recv(1 << 16)
                self._read += block
                self._ended = not block
        except BlockingIOError:
            pass
        except OSError:  # reset by the other end: it has died
            self._ended = True
        while len(self._read) >= _LENGTH.size:
            end = _LENGTH.size + int(_LENGTH.unpack_from(self._read)[0])
            if len(self._read) < end:
                break
            self.messages.append(ForkingPickler.loads(bytes(self._read[_LENGTH.size : end])))
            del self._read[:end]

    def _wait(self, events: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, events)
            selector.select(POLL_SECONDS)


def encode(message: Any) -> bytes:
    return bytes(ForkingPickler.dumps(message))


class ThroughFile(Generic[Value]):
    """An argument of a process; a spawned process reads it from a file.

    ``multiprocessing`` would write it into a pipe. That write would block forever if the value is
    larger than the pipe's buffer and the worker is stopped before it reads.
    """

    def __init__(self, value: Value) -> None:
        self.value = value
        self._file: IO[bytes] | None = None  # without a name

    def close(self) -> None:
        """Called after the start: the process has its own descriptor."""
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


@dataclass(frozen=True, eq=False)
class SharedMemory:
    """The global state, the updates of a round, and further tensors for some methods."""

    state: Tensor
    updates: Tensor
    block_weights: Tensor | None
    local: Tensor | None
    """State that clients never upload, (clients, values)."""
    trained_local: Tensor | None
    """``local`` after the current round; copied into it when the round is committed."""

    @classmethod
    def make(cls, job: Job) -> SharedMemory:
        size, by_block = job.layers.state_size, job.config.sampling.objective == "aggregate"
        num_local = job.plan.num_clients * job.plan.local_index.size if job.plan.local else 0
        total = size + most_numbers(job) + (size if by_block else 0) + 2 * num_local
        _refuse_too_much(4 * total)
        local = None
        if job.plan.local:  # each client starts with the model's initial values
            own = take(read_state(job.model, job.layers), job.plan.local_index)
            local = own.expand(job.plan.num_clients, -1).clone().share_memory_()
        return cls(
            torch.empty(size).share_memory_(),
            torch.empty(most_numbers(job)).share_memory_(),
            torch.empty(size).share_memory_() if by_block else None,
            local,
            None if local is None else torch.empty_like(local).share_memory_(),
        )


def _refuse_too_much(num_bytes: int, folder: str = SHARED_FOLDER) -> None:
    """Refuse a job that needs more shared memory than is free: writing would kill it (SIGBUS)."""
    try:
        found = os.statvfs(folder)
    except OSError:  # another system
        return
    free = found.f_bavail * found.f_frsize
    if num_bytes > free:
        raise RunError(
            f"the model and the updates of a round need {bytes_text(num_bytes)} of shared memory, "
            f"but {folder} has {bytes_text(free)} left. Make it larger (docker run --shm-size), or "
            "let fewer clients take part in a round (sampling)."
        )
