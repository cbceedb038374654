"""Objects named by import path, such as ``my_package.models:build``."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from fedplt.errors import ConfigError


def search_first(folder: str) -> None:
    """Search for modules in this folder before all others."""
    if sys.path[:1] != [folder]:
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
        importlib.invalidate_caches()


def import_object(path: str, key: str, wanted: str = "a function", kind: type | None = None) -> Any:
    """Import ``module:attribute``; also searches the current folder.

    ``wanted`` is what it must be, in words; ``kind`` its class (default: anything callable).
    """
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(1, here)
    _refuse_other(module_name, path, key)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the user's module may raise anything while it is imported
        raise ConfigError(
            f"{key}: {path!r} cannot be imported ({type(error).__name__}: {error}). "
            f"Is it installed, or in {sys.path[0] or here} or {here}?"
        ) from error
    if not (callable(found) if kind is None else isinstance(found, kind)):
        raise ConfigError(f"{key}: {path!r} is a {type(found).__name__}; name {wanted} instead.")
    return found


def _refuse_other(module_name: str, path: str, key: str) -> None:
    """Refuse a module that was imported from another folder than the one that is meant now."""
    top = module_name.partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__file__", None)
    spec = PathFinder.find_spec(top) if loaded and top else None
    if spec and spec.origin and loaded and not _same(spec.origin, loaded):
        raise ConfigError(
            f"{key}: {path!r} is {spec.origin} here, but this process has already imported another "
            f"module of that name, {loaded}. Rename one of them, or use a process of its own."
        )


def _same(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()
