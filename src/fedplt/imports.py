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

from fedplt.errors import ConfigError, RunError, did_you_mean

_own: list[str] = []
"""Folders with the user's modules, at the end of ``sys.path``."""


def search_also(folder: str, *, last: bool = False) -> None:
    """Search for modules in this folder, after all that is installed.

    A ``jinja2.py`` there does not replace the installed package. The folder comes before those of
    earlier calls, or with ``last`` after them.
    """
    if folder in sys.path and (folder not in _own or last):
        return
    if folder in _own:
        _own.remove(folder)
    _own.insert(len(_own) if last else 0, folder)
    sys.path[:] = [*(entry for entry in sys.path if entry not in _own), *_own]
    importlib.invalidate_caches()


def import_object(path: str, key: str, wanted: str = "a function", kind: type | None = None) -> Any:
    """Import ``module:attribute``; also searches the current folder.

    ``wanted`` describes the object in messages; ``kind`` is its class (default: any callable).
    """
    module_name, _, attribute = path.partition(":")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise ConfigError(
            f"{path!r} is part of Python itself and is not called; name {wanted} of your "
            "own or of an installed package instead.",
            key=key,
        )
    search_also(str(Path.cwd()), last=True)
    _refuse_other(module_name, path, key)
    places = " or ".join(dict.fromkeys([*_own[:1], str(Path.cwd())]))
    hint = f"Is it installed, or in {places}?"
    try:
        module = importlib.import_module(module_name)
        hint = did_you_mean(attribute, vars(module))
        hint = hint if hint.startswith("Did") else f"Is it defined in {module_name}?"
        found = getattr(module, attribute)
    except Exception as error:  # the user's module may raise anything while it is imported
        raise ConfigError(
            f"{path!r} cannot be imported ({type(error).__name__}: {error}). {hint}", key=key
        ) from error
    if not (callable(found) if kind is None else isinstance(found, kind)):
        raise ConfigError(f"{path!r} is a {type(found).__name__}; name {wanted} instead.", key=key)
    return found


def _refuse_other(module_name: str, path: str, key: str) -> None:
    """Refuse a module if another one of that name is installed, or was imported already."""
    top = module_name.partition(".")[0]
    spec = PathFinder.find_spec(top) if top not in ("", "fedplt", "fedplt_flower") else None
    if spec is None or not spec.origin:
        return
    mine = PathFinder.find_spec(top, _own)
    if mine and mine.origin and _is_of_package(spec.origin):
        raise ConfigError(
            f"{path!r} is the installed {spec.origin}, which comes before {mine.origin}. "
            "Rename yours, so that it is clear which one is meant.",
            key=key,
        )
    loaded = getattr(sys.modules.get(top), "__file__", None)
    if loaded and Path(loaded).resolve() != Path(spec.origin).resolve():
        raise ConfigError(
            f"{path!r} is {spec.origin} here, but this process has already imported another "
            f"module of that name, {loaded}. Rename one of them, or use another process.",
            key=key,
        )


def optional_module(name: str, user: str, install: str) -> ModuleType:
    """Import an optional package; if it is missing, the error shows how to install it."""
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
    """Whether a function from an installed package is annotated to return this kind of object.

    A configuration from elsewhere must not call any function of an installed package. Functions in
    the configuration's folder need no annotation.
    """
    if not _is_installed(function):
        return True
    if isinstance(function, type):
        return issubclass(function, kind)
    try:
        annotated = typing.get_type_hints(_plain(function)).get("return")
    except Exception:  # annotations may be anything
        return False
    return isinstance(annotated, type) and issubclass(annotated, kind)


def _plain(found: Any) -> Any:
    return _plain(found.func) if isinstance(found, partial) else found


def _is_installed(found: Any) -> bool:
    """Whether it is from an installed package, or built in, and not from the user's files."""
    found = _plain(found)
    is_code = isinstance(found, type) or inspect.isroutine(found)
    try:
        file = inspect.getfile(found if is_code else type(found))
    except (TypeError, OSError):
        return True
    return _is_of_package(file)


def _is_of_package(file: str) -> bool:
    installed = [*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib")]
    return any(Path(file).is_relative_to(folder) for folder in installed)
