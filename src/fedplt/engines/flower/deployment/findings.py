"""What a check finds: good, worth knowing, or a problem and what to do about it."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedplt.engines.flower.deployment.record import installed_versions


@dataclass(frozen=True)
class Finding:
    """One line of a check."""

    level: Literal["ok", "note", "problem"]
    text: str
    do: str = ""


def ok(text: str) -> Finding:
    return Finding("ok", text)


def note(text: str, do: str = "") -> Finding:
    return Finding("note", text, do)


def problem(text: str, do: str) -> Finding:
    return Finding("problem", text, do)


def private_file(path: Path) -> Finding:
    """Nobody but the owner may read a key."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return problem(f"{path} cannot be read: {error.strerror}", "copy the folder again")
    if mode & 0o077:
        text = f"{path} can be read by others (mode {mode:o})"
        return problem(text, f"chmod 600 {path}; if others may have read it, make new keys")
    return ok(f"{path.name} is private")


def versions(wanted: Mapping[str, str], here: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Against those that the deployment was made with."""
    here = here or installed_versions()
    for package, expected in wanted.items():
        found = here.get(package, "(not installed)")
        text = f"{package} {found}"
        if found == expected:
            yield ok(text)
        elif package in ("fedplt", "flwr"):
            install = f"pip install '{package}=={expected}'"
            yield problem(f"{text}, but the deployment was made with {expected}", install)
        elif _minor(found) != _minor(expected):
            say = f"{text}, but the deployment was made with {expected}: results may differ in bits"
            if package == "torch":
                yield problem(say, f"pip install 'torch=={expected.partition('+')[0]}'")
            else:
                yield note(say)
        else:
            yield note(f"{text} (the deployment was made with {expected})")


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
