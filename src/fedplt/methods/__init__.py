"""The methods, by name. A method is one file and one line here."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedplt.errors import ConfigError, PlanError, did_you_mean
from fedplt.layers import Layers
from fedplt.methods.fedavg import FedAvg
from fedplt.methods.fedbn import FedBN
from fedplt.methods.feddrop import FedDrop
from fedplt.methods.fedplt import FedPLT
from fedplt.methods.fedpmt import FedPMT
from fedplt.methods.fedrolex import FedRolex
from fedplt.methods.heterofl import HeteroFL
from fedplt.methods.method import Method, PlanRequest
from fedplt.plan import Plan
from fedplt.spaces import Spaces

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        FedPLT,
        FedAvg,
        FedPMT,
        HeteroFL,
        FedRolex,
        FedDrop,
        FedBN,
    )
}


def make_method(name: str, options: dict[str, Any] | None = None) -> Method:
    """The method of this name with its options."""
    if name not in METHODS:
        raise ConfigError(f"method.name: there is no {name!r}. {did_you_mean(name, METHODS)}")
    kind, options = METHODS[name], options or {}
    known = [field.name for field in fields(kind)]
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known)
            raise ConfigError(f"method.{option}: {name} has no such option. {hint}")
    try:
        text = json.dumps(options, default=str)  # strict mode reads dataclasses from JSON alone
        method: Method = TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first: Any = error.errors()[0]
        key = ".".join(map(str, ["method", *first["loc"]]))
        raise ConfigError(f"{key}: {first['msg']}, but it is {first['input']!r}.") from None
    if method.local_norms and method.static_norm:
        raise ConfigError("method: local_norms and static_norm exclude each other; set one.")
    return method


def read_plan(data: dict[str, Any]) -> Plan:
    """A plan from its JSON. Plans of sub-models are made anew by their method, and compared."""
    if "method" not in data:
        return Plan.from_json(data)
    options = dict(data["method"])
    method, layers = make_method(options.pop("name"), options), Layers.from_json(data["model"])
    spaces = Spaces.from_json(data["spaces"])
    plan = method.full_plan(PlanRequest(layers, data["ratios"], data["seed"], lambda: spaces))
    if plan.fingerprint != data["fingerprint"]:
        raise PlanError(
            "the plan does not match its own fingerprint: it was edited or damaged, or this "
            f"version of {method.name} plans in another way."
        )
    return plan


__all__ = ["METHODS", "Method", "PlanRequest", "make_method", "read_plan"]
