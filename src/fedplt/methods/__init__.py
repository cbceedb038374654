"""The built-in methods by name, and others by import path.

A new method is one file, and one line in ``METHODS``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from fedplt.errors import ConfigError, PlanError, did_you_mean
from fedplt.imports import import_object, imported_object
from fedplt.methods.fedavg import FedAvg
from fedplt.methods.fedbn import FedBN
from fedplt.methods.feddrop import FedDrop
from fedplt.methods.fedplt import FedPLT
from fedplt.methods.fedpmt import FedPMT
from fedplt.methods.fedrolex import FedRolex
from fedplt.methods.heterofl import HeteroFL
from fedplt.methods.method import Method, PlanRequest
from fedplt.planning import Layers, Plan, Spaces

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


def make_method(
    name: str, options: dict[str, Any] | None = None, *, may_import: bool = True
) -> Method:
    """The method of this name, or of ``package.module:Class``, with its options.

    Where a file is only read, ``may_import=False``: it must not make this process run code.
    """
    kind, options = METHODS.get(name) or _imported(name, may_import), options or {}
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


def _imported(path: str, may_import: bool) -> type[Method]:
    """The user's own method; plans store its import path."""
    if ":" not in path:
        raise ConfigError(
            f"method.name: there is no {path!r}. {did_you_mean(path, METHODS)} "
            "Your own is named by import path: 'my_package.methods:MyMethod'."
        )
    wanted = "a subclass of fedplt.methods.Method"
    kind: Any = imported_object(path)
    if kind is None and not may_import:
        raise PlanError(
            f"the plan was made by {path!r}, and reading a plan imports nothing that it names. "
            "Import that module first (in Python), or let 'fedplt resume' do it, which runs its "
            "code and writes a finished run's report again."
        )
    if kind is None:
        kind = import_object(path, "method.name", wanted)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        what = (
            f"the class {kind.__name__}" if isinstance(kind, type) else f"a {type(kind).__name__}"
        )
        raise ConfigError(f"method.name: {path!r} is {what}; name {wanted} instead.")
    missing = [key for key in ("name", "holds", "trains") if not hasattr(kind, key)]
    missing += ["plan"] if kind.plan is Method.plan else []
    if missing:
        raise ConfigError(
            f"method.name: {path!r} lacks {', '.join(missing)}: see docs/add_method.md."
        )
    if getattr(sys.modules[kind.__module__], kind.__qualname__, None) is not kind:
        raise ConfigError(
            f"method.name: {path!r} is {kind.__qualname__} of {kind.__module__}, which other "
            "processes would not find there: define it at the top level of its module."
        )
    try:
        TypeAdapter(kind)
    except Exception as error:  # the user's annotations may raise anything
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"method.name: {path!r} has a field that is no option: {reason}"
        ) from error
    return cast(type[Method], kind)


def read_plan(data: dict[str, Any]) -> Plan:
    """A plan from its JSON. Plans of sub-models are recomputed by their method and compared.

    A method of the user's own must be imported already: reading a file runs no code it names.
    """
    if "method" not in data:
        return Plan.from_json(data)
    options = dict(data["method"])
    if "normaliser" in options:
        raise PlanError(
            "this plan of sub-models was written by an earlier version of fedplt, whose option "
            "'normaliser' is 'normalizer' now: start the run anew, or use that version."
        )
    method = make_method(options.pop("name"), options, may_import=False)
    layers = Layers.from_json(data["model"])
    spaces = Spaces.from_json(data["spaces"])
    plan = method.full_plan(PlanRequest(layers, data["ratios"], data["seed"], lambda: spaces))
    if plan.fingerprint != data["fingerprint"]:
        raise PlanError(
            "the plan does not match its own fingerprint: it was edited or damaged, or this "
            f"version of {method.name} plans in another way."
        )
    return plan


__all__ = ["METHODS", "Method", "PlanRequest", "make_method", "read_plan"]
