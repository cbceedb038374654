"""Federated learning on unequal devices by partial layer training (FedPLT).

Plan who trains what::

    layers = fedplt.cut(model, example)
    plan = fedplt.make_plan(layers, ratios=[1.0, 0.29, 0.06])

Train a slice in your own loop::

    with fedplt.train_only(model, plan.assignment(2)) as part:
        optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
        ...
    update = part.update(num_examples=600)

Or train a whole federation on this machine::

    history = fedplt.train(model, (x, y), (x_val, y_val), ratios=[1.0, 0.29, 0.06], rounds=20)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Imported on first use: planning needs NumPy alone, and torch takes seconds to import.
_HOMES = {
    "Allocation": "fedplt.planning.allocation",
    "allocation_of": "fedplt.planning.allocation",
    "balanced_allocation": "fedplt.planning.allocation",
    "Assignment": "fedplt.planning.assignment",
    "Plan": "fedplt.planning.plan",
    "make_plan": "fedplt.planning.plan",
    "Layer": "fedplt.planning.layers",
    "Layers": "fedplt.planning.layers",
    "TensorSpec": "fedplt.planning.layers",
    "DeviceProfile": "fedplt.fleet",
    "plan_fleet": "fedplt.fleet",
    "FedpltError": "fedplt.errors",
    "ConfigError": "fedplt.errors",
    "CutError": "fedplt.errors",
    "DataError": "fedplt.errors",
    "FleetError": "fedplt.errors",
    "PlanError": "fedplt.errors",
    "RunError": "fedplt.errors",
    "SamplingError": "fedplt.errors",
    "UpdateError": "fedplt.errors",
    "sampling_probabilities": "fedplt.sampling",
    "cut": "fedplt.cutting.find_layers",
    "train_only": "fedplt.client.train_only",
    "Part": "fedplt.client.slices",
    "ClientUpdate": "fedplt.client.update",
    "Aggregator": "fedplt.server.aggregation",
    "TrainingData": "fedplt.data.samples",
    "train": "fedplt.engines.run",
    "History": "fedplt.federation.records",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 (they are strings)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedplt' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from fedplt.client.slices import TrainableSlices as TrainableSlices
    from fedplt.client.train_only import train_only as train_only
    from fedplt.client.update import ClientUpdate as ClientUpdate
    from fedplt.cutting.find_layers import cut as cut
    from fedplt.data.samples import TrainingData as TrainingData
    from fedplt.engines.run import train as train
    from fedplt.errors import ConfigError as ConfigError
    from fedplt.errors import CutError as CutError
    from fedplt.errors import DataError as DataError
    from fedplt.errors import FedpltError as FedpltError
    from fedplt.errors import FleetError as FleetError
    from fedplt.errors import PlanError as PlanError
    from fedplt.errors import RunError as RunError
    from fedplt.errors import SamplingError as SamplingError
    from fedplt.errors import UpdateError as UpdateError
    from fedplt.federation.records import History as History
    from fedplt.fleet import DeviceProfile as DeviceProfile
    from fedplt.fleet import plan_fleet as plan_fleet
    from fedplt.planning.allocation import Allocation as Allocation
    from fedplt.planning.allocation import allocation_of as allocation_of
    from fedplt.planning.allocation import balanced_allocation as balanced_allocation
    from fedplt.planning.assignment import Assignment as Assignment
    from fedplt.planning.layers import Layer as Layer
    from fedplt.planning.layers import Layers as Layers
    from fedplt.planning.layers import TensorSpec as TensorSpec
    from fedplt.planning.plan import Plan as Plan
    from fedplt.planning.plan import make_plan as make_plan
    from fedplt.sampling import sampling_probabilities as sampling_probabilities
    from fedplt.server.aggregation import Aggregator as Aggregator
