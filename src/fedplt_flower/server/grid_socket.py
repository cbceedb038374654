"""Flower's grid over a local socket, for a simulation.

Only a server app, in a process that Flower starts, gets Flower's grid. The round loop runs in the
user's process and sends orders over the socket; the server app forwards them to the grid and sends
the answers back. Frames are safetensors; nothing is pickled.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from fedplt.errors import RunError
from fedplt_flower.records import Arrays
from fedplt_flower.server.wire import Answer, Order, Wire

CONNECT_SECONDS = 10.0
VALUE = "frame.value"
"""Name of the array in a frame that holds its JSON value."""


class FramedSocket:
    """A connected socket for frames of a JSON value and arrays.

    A call is one frame. Its answer is a frame with a number, then this number of frames.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._input = connection, connection.makefile("rb")

    def send(self, value: Any, arrays: Arrays | None = None) -> None:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        whole = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        data = save({**whole, VALUE: text})
        self.connection.sendall(struct.pack("<Q", len(data)) + data)

    def receive(self) -> tuple[Any, Arrays]:
        (size,) = struct.unpack("<Q", self._read(8))
        arrays = load(self._read(size))
        return json.loads(arrays.pop(VALUE).tobytes()), arrays

    def _read(self, size: int) -> bytes:
        data = self._input.read(size)
        if len(data) < size:
            raise ConnectionError("the other side has ended")
        return data

    def close(self) -> None:
        self._input.close()
        self.connection.close()


class SocketWire:
    """The round loop's end of the socket, in a folder that only this user may enter."""

    def __init__(self, address: Path, max_in_flight: int, timeout: float) -> None:
        self.max_in_flight: int | None = max_in_flight
        self.timeout = timeout
        self.interruptions = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen(1)
        self._peer: FramedSocket | None = None

    def accept(self, seconds: float) -> bool:
        """Wait this long for the server app; return whether it has connected."""
        self._listener.settimeout(seconds)
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            return False
        connection.settimeout(self.timeout)
        self._peer = FramedSocket(connection)
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
        except OSError as error:
            raise RunError(f"Flower's server app has ended ({error}).") from error

    def close(self) -> None:
        """Close the connection, which also ends the server app."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        self._listener.close()


def serve_grid(wire: Wire, address: str) -> None:
    """The server app's end of the socket: carry out calls until the round loop ends."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(CONNECT_SECONDS)
    connection.connect(address)
    connection.settimeout(None)  # closing the connection ends this process
    peer = FramedSocket(connection)
    while True:
        try:
            (action, *rest), arrays = peer.receive()
        except OSError:
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
