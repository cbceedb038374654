"""Files and modules that a configuration names: looked for beside it, then in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILES = (("data", "split_file"), ("fleet", "devices"), ("fleet", "availability"), ("model", "weights"))
"""Keys whose values are files."""


def make_absolute(values: dict[str, Any], folder: Path | None = None) -> None:
    """Make relative paths in plain values absolute, so that a run can be resumed from anywhere.

    ``folder``: that of the configuration's file, which also has the modules it names.
    """
    for section, key in FILES:
        inner = values.get(section)
        given = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(given, str) and given and given[0] != "(":
            here, beside = Path(given).absolute(), (folder or Path()).absolute() / given
            inner[key] = str(here if here.exists() and not beside.exists() else beside)
    if folder is not None and not isinstance(values.get("code"), str):
        values["code"] = str(folder.absolute())
    elif folder is not None:
        values["code"] = str(folder.absolute() / values["code"])
