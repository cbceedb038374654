"""The environment of a run: versions, machine, times; one entry per session.

A session is one process that ran rounds: a run that was stopped and resumed has several.
``sessions.json`` describes the run for its readers; nothing is computed from it. So damage to it
stops neither a run nor a report, but is reported.
"""

from __future__ import annotations

import os
import platform
import re
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, TypeAdapter

from fedplt.errors import DamagedError
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.run_folder.sealed import checked, read_json
from fedplt.files import write_text
from fedplt.fleet import physical_memory
from fedplt.kernels import GENERATION
from fedplt.schema import Section

SESSIONS_FILE = "sessions.json"
PACKAGES = ("fedplt", "torch", "numpy", "safetensors", "pydantic", "flwr")
MAX_SESSIONS = 1000


class _Session(Section):
    started: str
    first_round: Annotated[int, Field(ge=1, le=10**9)]
    python: str
    packages: dict[str, str]
    system: str
    processor: str
    cores: Annotated[int, Field(ge=1)]
    memory_bytes: Annotated[int, Field(ge=0)] | None
    folder: str = ""
    """The working directory; Python also searches it for modules."""


class _Sessions(Section):
    format: Literal[2]
    sessions: Annotated[list[_Session], Field(min_length=1)]


def note_session(folder: RunFolder, rounds_done: int) -> None:
    """Add this process to the sessions of a run."""
    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    session = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "first_round": rounds_done + 1,
        "python": platform.python_version(),
        "packages": packages,
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": physical_memory(),
        "folder": str(Path.cwd()),
    }
    try:
        earlier = read_sessions(folder.path, folder.run)
    except DamagedError as error:
        earlier = []
        warnings.warn(f"{error} It is begun anew; the run is unaffected.", stacklevel=2)
    values = {"format": 2, "sessions": [*earlier, session][-MAX_SESSIONS:]}
    folder.write_json(SESSIONS_FILE, values, indent=1)


def read_sessions(folder: Path, run: str) -> list[dict[str, Any]]:
    """The sessions of a run, oldest first; none where the file is missing. ``run`` is its id."""
    path = folder / SESSIONS_FILE
    if not path.exists():
        return []
    found = checked(TypeAdapter(_Sessions), read_json(path, run), path)
    return [session.model_dump() for session in found.sessions]


def processor_name() -> str:
    """What rounding depends on, such as ``AMD EPYC, AVX2, torch 2.13.0, kernels 3``."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):  # not Linux
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if named := re.search(r"^model name\s*:(.*)$", text, re.MULTILINE):
            model = named[1].strip()
    version = torch.__version__.partition("+")[0]
    simd = torch.backends.cpu.get_cpu_capability()
    return f"{model}, {simd}, torch {version}, kernels {GENERATION}"


def note_processor(path: Path) -> None:
    """Add this processor to a file with one line per kind of processor used."""
    used = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    if processor_name() not in used:
        write_text(path, "".join(f"{name}\n" for name in [*used, processor_name()]))
