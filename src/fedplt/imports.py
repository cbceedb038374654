"""Objects named by import path, such as ``my_package.models:build``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from fedplt.errors import ConfigError


def import_object(path: str, key: str, wanted: str = "a function") -> Any:
    """Import ``module:attribute``; also searches the current folder."""
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the user's module may raise anything while it is imported
        raise ConfigError(
            f"{key}: {path!r} cannot be imported ({type(error).__name__}: {error}). "
            "Is it installed, or in this folder?"
        ) from error
    if not callable(found):
        raise ConfigError(f"{key}: {path!r} is a {type(found).__name__}; name {wanted} instead.")
    return found
