"""Take expected files out of a tar archive. Nothing else of it is ever written."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from fedplt.data.downloads import SourceError

OTHER_BYTES = 1 << 26
"""So much of an archive may be something else: headers, documentation, padding."""


class Readable(Protocol):
    """A binary file, decompressed on the way or not."""

    def read(self, size: int, /) -> bytes: ...


def copy_members(archive: Readable, wanted: Mapping[str, int], folder: Path, name: str) -> None:
    """Copy regular files out of a decompressed archive, by their base names, into ``folder``.

    ``wanted`` gives their names and their largest sizes. The folders that the archive names are
    ignored, and so are links, devices and all other members: nothing is written outside ``folder``.
    The archive is a stream, read no further than the wanted files reach in an honest one.
    """
    missing = set(wanted)
    limited = _Limited(archive, sum(wanted.values()) + OTHER_BYTES)
    try:
        with tarfile.open(fileobj=limited, mode="r|") as members:
            for member in members:
                base = member.name.rsplit("/", 1)[-1]
                regular = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
                if base not in missing or not regular or member.issparse():
                    continue
                if member.size > wanted[base]:
                    raise SourceError(f"{base} has {member.size:,} bytes, too many")
                content = members.extractfile(member)
                assert content is not None
                with (folder / base).open("wb") as out:
                    shutil.copyfileobj(content, out)
                missing.discard(base)
                if not missing:
                    return
    except Exception as error:  # tarfile can fail in any way at what is no archive
        raise SourceError(f"{name} cannot be unpacked: {error}") from error
    raise SourceError(f"{name} does not hold {', '.join(sorted(missing))}")


class _Limited(io.RawIOBase):
    """A stream that is an error where it becomes too long, or is read beyond its end.

    tarfile would read on and on for a member that claims to be huge.
    """

    def __init__(self, stream: Readable, limit: int) -> None:
        self._stream, self._left, self._after_end = stream, limit, 0

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > self._left:
            raise SourceError("it is larger than the published one")
        data = self._stream.read(size)
        self._left -= len(data)
        self._after_end += not data
        if self._after_end > 10:
            raise SourceError("it ends too early")
        return data
