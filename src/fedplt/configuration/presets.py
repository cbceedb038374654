"""``method.preset``: named combinations of settings.

A preset sets only keys that have their default values. The run's folder records the resulting
keys, not the preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedplt.errors import ConfigError, did_you_mean

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "recommended": {
        "method": {"rotate_every": 1},
        "server": {"memory": {"decay": 0.8}, "average": {"decay": 0.9, "ship": "better"}},
        "messages": {"up": "int8", "down": "int4"},
    },
    "strong-only": {"sampling": {"name": "strong"}},
}
"""``recommended``: settings that improve FedPLT (``docs/beyond.md``). ``strong-only``: only clients
that can train the whole model take part, which is FedAvg among them."""


NAMES = {
    "fedplt-recommended": {"name": "fedplt", "preset": "recommended"},
    "fedavg-strong": {"name": "fedplt", "preset": "strong-only"},
}
"""Methods with a preset, as ``fedplt compare`` names them."""


def apply_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a configuration, with the keys of its preset filled in."""
    sections = dict(values)
    method = sections.get("method")
    if not isinstance(method, dict) or "preset" not in method:
        return sections
    name = method["preset"]
    if name not in PRESETS:
        raise ConfigError(
            f"there is no {name!r}. {did_you_mean(str(name), PRESETS)}", key="method.preset"
        )
    if method.get("name") != "fedplt":
        problem = (
            f"it is {name!r}, which is for method.name = 'fedplt', not {method.get('name')!r}."
        )
        raise ConfigError(problem, key="method.preset", also=["method.name"])
    sections["method"] = {key: value for key, value in method.items() if key != "preset"}
    defaults: dict[str, dict[str, Any]] = {
        "messages": {"up": "float32", "down": "float32"},
        "method": {"rotate_every": 0},
        "sampling": {"name": "all"},
    }
    for key, wanted in PRESETS[name].items():
        given = sections.get(key, {})
        if isinstance(given, dict):
            default = defaults.get(key, {})
            kept = {k: v for k, v in given.items() if v not in (None, default.get(k))}
            sections[key] = {**given, **wanted, **kept}
    return sections
