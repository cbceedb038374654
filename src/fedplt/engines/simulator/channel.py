"""Messages between the server and a worker, over a socket that never blocks for good."""

from __future__ import annotations

import selectors
import socket
import struct
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

POLL_SECONDS = 0.2
_LENGTH = struct.Struct("!Q")


class Channel:
    """One end of a connection. Messages are pickled: both ends are processes of this run.

    Where a call has to wait, it calls ``waiting`` about every 0.2 seconds, which raises to give up.
    So the death or the stop of the other end is never waited out, not even in the
    middle of a message, and not even if another process holds the other end open.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._read = bytearray()
        self._ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes, waiting: Callable[[], None]) -> None:
        """Send a message from :func:`encode`; raise OSError if the other end is closed."""
        rest = memoryview(_LENGTH.pack(len(message)) + message)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                # Read as well: the other end may be waiting until we do.
                self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE)
                self._fill()
                waiting()

    def receive(self) -> list[Any]:
        """All messages that have arrived; raise EOFError once the other end is closed."""
        self._fill()
        found = []
        while (message := self._next()) is not None:
            found.append(decode(message))
        if self._ended and not found:
            raise EOFError
        return found

    def wait(self, waiting: Callable[[], None]) -> Any:
        """The next message."""
        while True:
            self._fill()
            if (message := self._next()) is not None:
                return decode(message)
            if self._ended:
                raise EOFError
            self._wait(selectors.EVENT_READ)
            waiting()

    @property
    def has_message(self) -> bool:
        """Whether a whole message has been read from the socket, and not yet been received."""
        return self._end_of_next() is not None

    def close(self) -> None:
        self._socket.close()

    def _fill(self) -> None:
        """Read what is there."""
        try:
            while not self._ended:
                block = self._socket.recv(1 << 16)
                self._read += block
                self._ended = not block
        except BlockingIOError:
            pass
        except OSError:  # reset by the other end: it has died
            self._ended = True

    def _end_of_next(self) -> int | None:
        if len(self._read) < _LENGTH.size:
            return None
        end = _LENGTH.size + int(_LENGTH.unpack_from(self._read)[0])
        return end if len(self._read) >= end else None

    def _next(self) -> bytes | None:
        end = self._end_of_next()
        if end is None:
            return None
        message = bytes(self._read[_LENGTH.size : end])
        del self._read[:end]
        return message

    def _wait(self, events: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, events)
            selector.select(POLL_SECONDS)


def encode(message: Any) -> bytes:
    """As the connections of ``multiprocessing`` do."""
    return bytes(ForkingPickler.dumps(message))


def decode(message: bytes) -> Any:
    return ForkingPickler.loads(message)
