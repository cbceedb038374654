"""Downloads that break off and servers that answer rubbish: the reason is said."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fedplt.data.catalog import cache_folder
from fedplt.data.sources import Official, SourceError


@pytest.fixture
def serve():
    """Serve one answer, as it is given (status line, headers, body), and tell its address."""
    servers = []

    def start(answer: bytes, name: str = "file.bin") -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.wfile.write(answer)

            def log_message(self, *_): ...

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.handle_request, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/{name}"

    yield start
    for server in servers:
        server.server_close()


def ok(body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % (length or len(body)) + body


def archive(name: str = "inside.bin") -> bytes:
    content, file = os.urandom(100_000), io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def test_files_are_fetched_and_archives_unpacked(serve, tmp_path):
    seen = []
    addresses = [serve(ok(b"x" * 3_000_000)), serve(ok(archive()), "data.tar.gz")]
    Official(addresses).fetch(tmp_path, lambda *what: seen.append(what))
    assert (tmp_path / "file.bin").read_bytes() == b"x" * 3_000_000
    assert (tmp_path / "inside.bin").stat().st_size == 100_000
    assert [done for name, done, total in seen if name == "file.bin" and total == 3_000_000] == [
        1 << 20, 2 << 20, 3_000_000,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "name", "expected"),
    [
        (b"HTTP/1.0 404 Not Found\r\n\r\n", "file.bin", "Not Found"),
        (ok(b"x" * 500, length=1000), "file.bin", "ended after 500 of 1,000 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nxx", "file.bin", "Incomplete"),
        (b"no HTTP at all\r\n\r\n", "file.bin", "no HTTP at all"),
        (ok(b"<html>please log in</html>"), "data.tar.gz", "cannot be unpacked"),
        (ok(archive()[:50_000]), "data.tar.gz", "cannot be unpacked"),
        (ok(archive("../outside.bin")), "data.tar.gz", "cannot be unpacked"),
    ],
    ids=["missing", "short", "chunk", "rubbish", "portal", "truncated", "outside"],
)
def test_what_goes_wrong_is_said(serve, tmp_path, answer, name, expected):
    folder = tmp_path / "scratch"
    folder.mkdir()
    with pytest.raises(SourceError, match=expected):
        Official([serve(answer, name)]).fetch(folder, lambda *_: None)
    assert not (tmp_path / "outside.bin").exists()


def test_the_cache_folder_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPLT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="the documented folder of Linux")
def test_the_documented_folder_on_linux(monkeypatch, tmp_path):
    for name in ("FEDPLT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path.home() / ".cache" / "fedplt"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fedplt"
