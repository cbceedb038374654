"""What every section of a configuration has in common."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from fedplt.text import REPR, shortened

LARGEST = 2**63 - 1
DEPTH = 20
"""Of lists and tables in options."""


def _folder_name(name: str) -> str:
    if not name.strip() or not name.isprintable() or not re.fullmatch(r"(?!\.)[^/\\]{1,100}", name):
        raise ValueError(
            f"{name!r:.60}: a name becomes the name of a folder: not empty, at most 100 "
            "characters, no slash, no dot at its start"
        )
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]

FROM_PYTHON = "(given from Python)"
"""The name of what a run was given as an object: a model, data, a loss, an augmentation."""
ON_NODES = "nodes"
"""The name of data, or of devices, that only the nodes of a deployment know."""


class Section(BaseModel):
    """A section that refuses unknown keys and never converts values (``"3"`` is no number)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _ordinary(cls, values: Any) -> Any:
        """Refuse, anywhere in it, what would only fail later: infinity, NUL, endless digits."""
        _refuse_odd(values, ())
        return values

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Keys that differ from their defaults: the others would be a wall of text."""
        for name, field in type(self).model_fields.items():
            if (value := getattr(self, name)) != field.default:
                yield name, value

    def __repr__(self) -> str:
        return shortened(super().__repr__(), REPR)

    def refuse_unused(self, keys: Iterable[str], because: str, instead: str) -> None:
        """Raise ValueError where a key that has no effect differs from its default.

        Defaults are accepted: a run's folder holds its configuration with all of them.
        """
        fields = type(self).model_fields
        unused = [key for key in keys if getattr(self, key) != fields[key].default]
        if unused:
            one = "it" if len(unused) == 1 else "them"
            raise ValueError(
                f"{because} does not use {', '.join(unused)}: leave {one} out, {instead}"
            )


def _refuse_odd(value: Any, path: tuple[str, ...]) -> None:
    if len(path) > DEPTH:
        raise ValueError(
            f"{'.'.join(path[:3])}...: tables and lists go {DEPTH} levels deep at most"
        )
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_odd(str(key), path)
            _refuse_odd(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_odd(item, (*path, str(index)))
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{'.'.join(path)}: give a finite number, not {value}")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(
            f"{'.'.join(path)}: give a number below 2^63; this one has too many digits"
        )
    elif isinstance(value, str) and "\0" in value:
        raise ValueError(f"{'.'.join(path)}: a text cannot hold a NUL character: {value!r:.60}")
