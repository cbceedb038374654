"""Runs that differ only in their seed belong together."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fedplt.errors import RunError
from fedplt.federation.config_file import flatten
from fedplt.federation.folder import MAY_CHANGE, RunFolder
from fedplt.federation.records import History


def by_configuration(folders: Sequence[RunFolder]) -> dict[str, list[History]]:
    """Histories of runs by label; runs that differ only in the seed share one."""
    groups: dict[str, list[History]] = {}
    names: dict[str, str] = {}
    for folder in folders:
        history, config = folder.history(), folder.config()
        if not history.evaluated:
            raise RunError(f"{folder.path} has no evaluated round yet: nothing to draw.")
        kept = {
            key: value
            for key, value in flatten(config).items()
            if key != "seed" and key not in MAY_CHANGE
        }
        key = json.dumps(kept, sort_keys=True)
        label = f"{config.name} {config.method['name']}"
        if key not in names:
            taken = sum(name.startswith(label) for name in names.values())
            names[key] = f"{label} ({taken + 1})" if taken else label
        groups.setdefault(names[key], []).append(history)
    return groups
