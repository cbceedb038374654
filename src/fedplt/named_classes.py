"""Classes by name: built-in ones, and the user's by import path, with checked options.

Methods, samplers and aggregation rules are frozen dataclasses whose fields are their options.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from fedplt.errors import ConfigError, FedpltError, did_you_mean
from fedplt.imports import import_object, imported_object
from fedplt.schema import problems

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class NamedClasses(Generic[Kind]):
    """The classes that one key of a configuration can name."""

    key: str
    """The key of the name, such as ``method.name``."""
    options_key: str
    """The table of the options, such as ``method``."""
    base: type[Kind]
    known: Mapping[str, type[Kind]]
    """Built-in classes by name."""
    wanted: str
    """Description of the required class, for error messages."""
    page: str
    """The documentation page on writing such a class."""
    needs: tuple[str, ...] = ()
    """Attributes that a class must define; ``a or b``: one of them."""

    def make(self, name: str, options: Mapping[str, Any] | None = None) -> Kind:
        """The object of this name, or of ``package.module:Class``, with its options."""
        kind, options, known = self.find(name), options or {}, self.options(name)
        for option in options:
            if option not in known:
                hint = did_you_mean(option, known) if known else "It has none."
                raise ConfigError(
                    f"{name} has no such option. {hint}", key=f"{self.options_key}.{option}"
                )
        try:
            text = json.dumps(options, default=str)  # strict mode accepts dataclasses only as JSON
            return TypeAdapter(kind).validate_json(text, strict=True)
        except ValidationError as error:
            first = problems(error)[0]
            key = ".".join(filter(None, [self.options_key, first.key]))
            raise ConfigError(first.message, key=key) from None

    def options(self, name: str) -> set[str]:
        """The options of a class of this name."""
        return {field.name for field in fields(cast(Any, self.find(name)))}

    def find(self, name: str) -> type[Kind]:
        """The class of this name; one by import path is imported."""
        if name in self.known:
            return self.known[name]
        if ":" not in name:
            raise ConfigError(
                f"there is no {name!r}. {did_you_mean(name, self.known)} "
                f"Your own is named by import path: 'my_module:My{self.base.__name__}'.",
                key=self.key,
            )
        kind: Any = imported_object(name)
        if kind is None:
            kind = import_object(name, self.key, self.wanted)
        if not (isinstance(kind, type) and issubclass(kind, self.base)):
            is_class = isinstance(kind, type)
            what = f"the class {kind.__name__}" if is_class else f"a {type(kind).__name__}"
            raise ConfigError(f"{name!r} is {what}; name {self.wanted} instead.", key=self.key)
        self._refuse_incomplete(name, kind)
        return kind

    def _refuse_incomplete(self, name: str, kind: type[Kind]) -> None:
        def is_missing(attribute: str) -> bool:
            return getattr(kind, attribute, None) is getattr(self.base, attribute, None)

        missing = [need for need in self.needs if all(map(is_missing, need.split(" or ")))]
        if missing:
            problem = f"{name!r} lacks {', '.join(missing)}: see {self.page}."
            raise ConfigError(problem, key=self.key)
        if getattr(sys.modules[kind.__module__], kind.__qualname__, None) is not kind:
            raise ConfigError(
                f"{name!r} is {kind.__qualname__} of {kind.__module__}, which other "
                "processes would not find there: define it at the top level of its module.",
                key=self.key,
            )
        try:
            TypeAdapter(kind)
        except Exception as error:  # the user's annotations may raise anything
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"{name!r} has a field that is no option: {reason}", key=self.key
            ) from error


def import_path(item: object) -> str:
    """The import path of a class or function, or of an object's class."""
    kind: Any = item if hasattr(item, "__qualname__") else type(item)
    return f"{kind.__module__}:{kind.__qualname__}"


@contextmanager
def calling_own(
    item: object, what: str, problem: type[FedpltError] = ConfigError
) -> Iterator[None]:
    """Turn an exception of the user's code into one that names its class, file and line.

    Exceptions of built-in classes, and any FedpltError, pass unchanged.
    """
    try:
        yield
    except Exception as error:  # the user's code may raise anything
        path = import_path(item)
        if isinstance(error, FedpltError) or path.startswith("fedplt."):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise problem(
            f"{what} of {path!r} failed in {where.filename}, line {where.lineno}: "
            f"{type(error).__name__}: {error}"
        ) from error
