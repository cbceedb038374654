"""Where and with what a run was computed: versions, machine, times; one entry per session.

A session is one process that ran rounds: a run that was stopped and resumed has several. The file
``sessions.json`` describes the run for its readers; nothing is computed from it.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedplt.federation.run_folder.processor import processor_name
from fedplt.files import write_text

FORMAT = 1
SESSIONS_FILE = "sessions.json"
PACKAGES = ("fedplt", "torch", "numpy", "safetensors", "pydantic", "flwr")
MAX_SESSIONS = 1000


def note_session(folder: Path, rounds_done: int) -> None:
    """Add this process to the sessions of a run."""
    session = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "first_round": rounds_done + 1,
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": _memory(),
    }
    sessions = [*read_sessions(folder), session][-MAX_SESSIONS:]
    text = json.dumps({"format": FORMAT, "sessions": sessions}, indent=1)
    write_text(folder / SESSIONS_FILE, text)


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """The sessions of a run; none where the file is missing or is not what we write."""
    try:
        data = json.loads((folder / SESSIONS_FILE).read_text(encoding="utf-8"))
        entries = data["sessions"] if data["format"] == FORMAT else []
        return [dict(entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not known on this system
        return None
