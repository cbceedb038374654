"""A web server that answers whatever it is told to, and archives of all kinds."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tarfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from fedplt.data.downloads import KnownFile


@contextmanager
def serving(answer: Iterable[bytes]) -> Iterator[str]:
    """The address of a server that sends these blocks as they are to whoever comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.recv(1 << 16)
                        for block in answer:
                            connection.sendall(block)
                    except OSError:  # they have had enough
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def ok(body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % (length or len(body)) + body


def known(name: str, content: bytes) -> KnownFile:
    return KnownFile(name, len(content), hashlib.sha256(content).hexdigest())


def member(name: str, content: bytes = b"", **about: object) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    for key, value in about.items():
        setattr(entry, key, value)
    return entry, content


def tar(members: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry, content in members:
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def zeros(size: int) -> bytes:
    """A gzip file of so many zeros, a thousandth of their size; made in parts."""
    file = io.BytesIO()
    with gzip.open(file, "wb", compresslevel=6) as out:
        for _ in range(0, size, 1 << 20):
            out.write(bytes(1 << 20))
    return file.getvalue()
