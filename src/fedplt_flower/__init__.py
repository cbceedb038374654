"""FedPLT on Flower: runs whose clients are Flower nodes, and users' Flower apps.

This package uses :mod:`fedplt`, which does not import it. Only this package imports flwr.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Imported on first use: the command line and Flower's SuperExec need neither torch nor flwr.app.
_HOMES = {
    "ClientSlices": "fedplt_flower.app.slices_app",
    "FedPLT": "fedplt_flower.server.strategy",
    "FlowerEngine": "fedplt_flower.server.engine",
    "FlowerSimulation": "fedplt_flower.server.simulation",
    "SlicesApp": "fedplt_flower.app.slices_app",
    "client_app": "fedplt_flower.node.client_app",
    "server_app": "fedplt_flower.server.server_app",
    "train_slices": "fedplt_flower.app.slices_app",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedplt_flower' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)


if TYPE_CHECKING:
    from fedplt_flower.app.slices_app import ClientSlices as ClientSlices
    from fedplt_flower.app.slices_app import SlicesApp as SlicesApp
    from fedplt_flower.app.slices_app import train_slices as train_slices
    from fedplt_flower.node.client_app import client_app as client_app
    from fedplt_flower.server.engine import FlowerEngine as FlowerEngine
    from fedplt_flower.server.server_app import server_app as server_app
    from fedplt_flower.server.simulation import FlowerSimulation as FlowerSimulation
    from fedplt_flower.server.strategy import FedPLT as FedPLT
