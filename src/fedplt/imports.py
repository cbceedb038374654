"""Objects named by import path, such as ``my_package.models:build``.

Importing runs the module's code: only what a user runs may be imported, never what a report, a
curve or a message from elsewhere names.
"""

from __future__ import annotations

import importlib
import inspect
import site
import sys
import sysconfig
import typing
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from fedplt.errors import ConfigError, RunError


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
    _refuse_python_itself(module_name, path, key, wanted)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(1, here)
    _refuse_other(module_name, path, key)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the user's module may raise anything while it is imported
        places = " or ".join(dict.fromkeys([sys.path[0] or here, here]))
        raise ConfigError(
            f"{key}: {path!r} cannot be imported ({type(error).__name__}: {error}). "
            f"Is it installed, or in {places}?"
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


def optional_module(name: str, user: str, install: str) -> ModuleType:
    """Import a package that fedplt does without; where it is missing, say how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        top = name.partition(".")[0]
        raise RunError(f"{user} needs {top}: pip install {install}") from error


def imported_object(path: str) -> Any:
    """What an import path names, if its module is imported already; else None."""
    module_name, _, attribute = path.partition(":")
    return getattr(sys.modules.get(module_name), attribute, None)


def returns(function: Any, kind: type) -> bool:
    """Whether a function from an installed package says that it returns this kind of object.

    A package has many functions that a foreign file should not call with options of its own. The
    user's own functions, in the configuration's folder, need no annotation.
    """
    if not _is_installed(function):
        return True
    if isinstance(function, type):
        return issubclass(function, kind)
    try:
        said = typing.get_type_hints(_plain(function)).get("return")
    except Exception:  # annotations may be anything
        return False
    return isinstance(said, type) and issubclass(said, kind)


def _refuse_python_itself(module: str, path: str, key: str, wanted: str) -> None:
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ConfigError(
            f"{key}: {path!r} is part of Python itself and is not called; name {wanted} of your "
            "own or of an installed package instead."
        )


def _plain(found: Any) -> Any:
    return _plain(found.func) if isinstance(found, partial) else found


def _is_installed(found: Any) -> bool:
    """Whether it is from an installed package, or built in, and not from the user's files."""
    found = _plain(found)
    try:
        file = Path(inspect.getfile(found if inspect.isroutine(found) else _class_of(found)))
    except (TypeError, OSError):
        return True
    installed = [*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib")]
    return any(file.is_relative_to(folder) for folder in installed)


def _class_of(found: Any) -> type:
    return found if isinstance(found, type) else type(found)
