"""The methods, by name. A method is one file and one line here."""

from __future__ import annotations

from typing import Any

from fedplt.errors import ConfigError, did_you_mean
from fedplt.methods.fedavg import FedAvg
from fedplt.methods.fedplt import FedPLT
from fedplt.methods.method import Method, PlanRequest

METHODS: dict[str, type[Any]] = {"fedavg": FedAvg, "fedplt": FedPLT}


def make_method(name: str, options: dict[str, Any] | None = None) -> Method:
    """The method of this name with its options."""
    if name not in METHODS:
        raise ConfigError(f"method.name: there is no {name!r}. {did_you_mean(name, METHODS)}")
    kind = METHODS[name]
    for option in options or {}:
        known = list(kind.__dataclass_fields__)
        if option not in known:
            hint = did_you_mean(option, known) if known else "It takes no options."
            raise ConfigError(f"method.{option}: {name} has no such option. {hint}")
    method: Method = kind(**(options or {}))
    return method


__all__ = ["METHODS", "FedAvg", "FedPLT", "Method", "PlanRequest", "make_method"]
