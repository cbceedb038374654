"""Flower's grid over a local socket: a simulation's round loop is not in Flower's server process.

Flower gives its grid only to a server app, in a process that it starts. The round loop runs in the
user's process and sends orders over the socket; the server app passes them on to the grid and sends
the answers back. Frames are safetensors; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from fedplt.errors import RunError
from fedplt_flower.records import Arrays
from fedplt_flower.server.wire import Answer, Order, Wire

MAX_FRAME = 2**36
HANDSHAKE_SECONDS = 10.0


class FramedSocket:
    """A connected socket for frames of a JSON value and arrays.

    A call is one frame; its answer is the number of further frames, and these.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, value: Any, arrays: Arrays | None = None) -> None:
        whole = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        data = save(whole, metadata={"value": json.dumps(value)})
        self.connection.sendall(struct.pack("<Q", len(data)) + data)

    def receive(self) -> tuple[Any, Arrays]:
        (size,) = struct.unpack("<Q", self._read(8))
        if size > MAX_FRAME:
            raise ConnectionError(f"a frame of {size} bytes")
        data = self._read(size)
        length = int.from_bytes(data[:8], "little")
        value = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["value"])
        return value, load(data)

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view, place = memoryview(data), 0
        while place < size:
            number = self.connection.recv_into(view[place:])
            if not number:
                raise ConnectionError("the other side has ended")
            place += number
        return bytes(data)

    def close(self) -> None:
        self.connection.close()


class SocketWire:
    """The round loop's end of the socket."""

    def __init__(self, max_in_flight: int, timeout: float) -> None:
        self.max_in_flight: int | None = max_in_flight
        self.timeout = timeout
        self.interruptions = 0
        self.folder = tempfile.mkdtemp(prefix="fedplt-grid-")  # only this user may enter it
        self.address = str(Path(self.folder) / "socket")
        self.token = secrets.token_hex(16)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(1)
        self._peer: FramedSocket | None = None

    def accept(self, seconds: float) -> bool:
        """Wait this long for the server app; return whether it has connected."""
        self._listener.settimeout(seconds)
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return False
        connection.settimeout(HANDSHAKE_SECONDS)
        peer = FramedSocket(connection)
        if peer.receive()[0] != self.token:
            peer.close()
            return False
        connection.settimeout(self.timeout)
        self._peer = peer
        return True

    def nodes(self) -> list[int]:
        ((found, _),) = self._call(["nodes"])
        return [int(node) for node in found]

    def push(self, orders: Sequence[Order], seconds: float) -> list[str]:
        ids: list[str] = []
        for order in orders:
            call = ["push", order.node, order.action, dict(order.header), seconds]
            ((found, _),) = self._call(call, order.arrays)
            ids += found
        return ids

    def pull(self, ids: Iterable[str]) -> dict[str, Answer]:
        found = self._call(["pull", list(ids)])
        return {name: Answer(header, arrays, error) for (name, header, error), arrays in found}

    def _call(self, value: Any, arrays: Arrays | None = None) -> list[tuple[Any, Arrays]]:
        if self._peer is None:
            raise RunError("Flower's server app has not connected.")
        try:
            self._peer.send(value, arrays)
            number, _ = self._peer.receive()
            return [self._peer.receive() for _ in range(number)]
        except (OSError, ConnectionError) as error:
            raise RunError(f"Flower's server app has ended ({error}).") from error

    def close(self) -> None:
        if self._peer is not None:
            with contextlib.suppress(OSError):
                self._peer.send(["end"])
            self._peer.close()
            self._peer = None
        self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def serve_grid(wire: Wire, address: str, token: str) -> None:
    """The server app's end of the socket: carry out calls until the round loop ends."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(HANDSHAKE_SECONDS)
    connection.connect(address)
    connection.settimeout(None)  # the round loop ends this process when it ends
    peer = FramedSocket(connection)
    peer.send(token)
    while True:
        try:
            (action, *rest), arrays = peer.receive()
        except (OSError, ConnectionError):
            return
        if action == "end":
            return
        frames: list[tuple[Any, Arrays]]
        if action == "nodes":
            frames = [([str(node) for node in wire.nodes()], {})]
        elif action == "push":
            node, kind, header, seconds = rest
            frames = [(wire.push([Order(node, kind, header, arrays)], seconds), {})]
        else:
            answers = wire.pull(rest[0])
            frames = [([name, dict(a.header), a.error], a.arrays) for name, a in answers.items()]
        peer.send(len(frames))
        for value, numbers in frames:
            peer.send(value, numbers)
