# mypy: implicit-reexport
"""The built-in methods by name, and others by import path.

A new method is one file, and one line in ``METHODS``.
"""

from __future__ import annotations

from typing import Any

from fedplt.errors import ConfigError, PlanError
from fedplt.imports import imported_object
from fedplt.methods.fedavg import FedAvg
from fedplt.methods.fedbn import FedBN
from fedplt.methods.feddrop import FedDrop
from fedplt.methods.fedecover import FedEcover
from fedplt.methods.federated_dropout import FederatedDropout
from fedplt.methods.fedpart import FedPart
from fedplt.methods.fedplt import FedPLT
from fedplt.methods.fedpmt import FedPMT
from fedplt.methods.fedrolex import FedRolex
from fedplt.methods.fjord import FjORD
from fedplt.methods.heterofl import HeteroFL
from fedplt.methods.method import Method, PlanRequest
from fedplt.named_classes import NamedClasses, calling_own, import_path
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
        FederatedDropout,
        FedEcover,
        FjORD,
        FedPart,
        FedBN,
    )
}

_CLASSES = NamedClasses(
    key="method.name",
    options_key="method",
    base=Method,
    known=METHODS,
    wanted="a subclass of fedplt.methods.Method",
    page="docs/add_method.md",
    needs=("name", "holds", "trains", "plan"),
)


def make_method(name: str, options: dict[str, Any] | None = None) -> Method:
    """The method of this name, or of ``package.module:Class``, with its options."""
    method = _CLASSES.make(name, options)
    if method.local_norms and method.static_norm:
        raise ConfigError("local_norms and static_norm exclude each other; set one.", key="method")
    return method


def read_plan(data: dict[str, Any]) -> Plan:
    """A plan from its JSON. A plan that names its method is recomputed by it and compared.

    A user's method must be imported already: reading a plan runs no code.
    """
    if "method" not in data:
        return Plan.from_json(data)
    options = dict(data["method"])
    name = options.pop("name")
    if ":" in name and imported_object(name) is None:
        raise PlanError(
            f"the plan was made by {name!r}, and reading a plan imports nothing that it names. "
            "Import that module first (in Python), or let 'fedplt resume' do it, which runs its "
            "code and writes a finished run's report again."
        )
    method = make_method(name, options)
    layers, ratios, seed = Layers.from_json(data["model"]), data["ratios"], data.get("seed", 0)
    request = PlanRequest(layers, ratios, seed, lambda: Spaces.from_json(data["spaces"]))
    plan = method.full_plan(request)
    if plan.fingerprint != data["fingerprint"]:
        raise PlanError(
            "the plan does not match its own fingerprint: it was edited or damaged, or this "
            f"version of {method.name} plans in another way."
        )
    return plan
