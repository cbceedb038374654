"""A TCP proxy on loopback that counts bytes, and can be cut or slowed down."""

from __future__ import annotations

import socket
import threading
import time


class CountingProxy:
    """Passes connections on to a port of this machine. Up is from the client to the server."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.up = self.down = 0
        self.is_cut = False
        self.bytes_per_second: float | None = None
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_cut:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            for source, goal, way in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self._pump, args=(source, goal, way), daemon=True).start()

    def _pump(self, source: socket.socket, goal: socket.socket, way: str) -> None:
        try:
            while data := source.recv(1 << 14 if self.bytes_per_second else 1 << 18):
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(data))
                if self.bytes_per_second:
                    time.sleep(len(data) / self.bytes_per_second)
                goal.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, goal):
                self._open.discard(each)
                each.close()

    def cut(self) -> None:
        """Break all connections, and refuse new ones until :meth:`mend`."""
        self.is_cut = True
        for each in list(self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def mend(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        self._listener.close()
        self.cut()
