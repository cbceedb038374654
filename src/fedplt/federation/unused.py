"""Settings that would do nothing are refused: who sets one expects something of it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel


def refuse_unused(section: BaseModel, keys: Sequence[str], because: str, instead: str) -> None:
    """Raise ValueError where some of the keys have another value than their default.

    Defaults are let through: a run's folder holds its configuration with all of them.
    """
    fields = type(section).model_fields
    unused = [key for key in keys if getattr(section, key) != fields[key].default]
    if unused:
        one = "it" if len(unused) == 1 else "them"
        raise ValueError(f"{because} does not use {', '.join(unused)}: leave {one} out, {instead}")
