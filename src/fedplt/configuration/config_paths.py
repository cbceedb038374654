"""Files and modules that a configuration names: looked for beside it, then in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedplt.builtin import builtin_fleets
from fedplt.configuration.section import FROM_PYTHON, ON_NODES

FILES = (
    ("data", "split_file"),
    ("fleet", "devices"),
    ("fleet", "availability"),
    ("model", "weights"),
)
"""Keys whose values are files."""
NO_FILES = ("", FROM_PYTHON, ON_NODES)


def make_absolute(values: dict[str, Any], folder: Path | None = None) -> None:
    """Make relative paths in plain values absolute, so that a run can be resumed from anywhere.

    ``folder``: that of the configuration's file, which also has the modules it names.
    """
    for section, key in FILES:
        inner = values.get(section)
        given = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(given, str) and given not in NO_FILES:
            here, beside = Path(given).absolute(), (folder or Path()).absolute() / given
            found = here if here.exists() and not beside.exists() else beside
            known = builtin_fleets() if key == "devices" and not found.exists() else {}
            inner[key] = str(known.get(given, found))
    code = values.get("code")
    if folder is not None and isinstance(code, str):
        values["code"] = str((folder / code).absolute())
