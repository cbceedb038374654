"""What every section of a configuration has in common."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

ON_NODES = "nodes"
"""The name of data, or of devices, that only the nodes of a deployment know."""


class Section(BaseModel):
    """A section that refuses unknown keys and never converts values (``"3"`` is no number)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

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
