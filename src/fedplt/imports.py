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
from pathlib import Path
from typing import Any

from fedplt.errors import ConfigError


def import_object(path: str, key: str, wanted: str = "a function") -> Any:
    """Import ``module:attribute``; also searches the current folder."""
    module_name, _, attribute = path.partition(":")
    _refuse_python_itself(module_name, path, key, wanted)
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
