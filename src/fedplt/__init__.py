"""Federated learning on unequal devices by partial layer training (FedPLT).

Run a configuration, as ``fedplt run`` does::

    history = fedplt.run("configs/fashion-mnist.toml", out="runs/mine")

Train a model of your own on data of your own::

    history = fedplt.train(model, (x, y), (x_val, y_val), ratios=[1.0, 0.29, 0.06], rounds=20)

Plan who trains what, and train a slice in your own loop::

    layers = fedplt.cut(model, example)
    plan = fedplt.make_plan(layers, ratios=[1.0, 0.29, 0.06])
    with fedplt.train_only(model, plan.assignment(2)) as part:
        optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
        ...
    update = part.update(num_examples=600)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Imported on first use: planning needs NumPy alone, and torch takes seconds to import.
_PUBLIC = {
    "fedplt.planning.allocation": ["Allocation", "allocation_of", "balanced_allocation"],
    "fedplt.planning.layers": ["Layer", "Layers", "TensorSpec"],
    "fedplt.planning.assignment": ["Assignment"],
    "fedplt.planning.plan": ["Plan", "make_plan"],
    "fedplt.planning.submodel_plan": ["submodel_plan"],
    "fedplt.planning.recipe": ["LocalRecipe"],
    "fedplt.sampling": ["sampling_probabilities"],
    "fedplt.fleet": ["DeviceProfile", "plan_fleet"],
    "fedplt.data.samples": ["TensorSamples", "TrainingData"],
    "fedplt.kernels.flat_state": ["bind_state"],
    "fedplt.cutting.find_layers": ["cut"],
    "fedplt.client.train_only": ["train_only"],
    "fedplt.client.slices": ["TrainableSlices"],
    "fedplt.client.submodels": ["HeldModels"],
    "fedplt.client.update": ["ClientUpdate"],
    "fedplt.server.validation": ["validate"],
    "fedplt.server.aggregation": ["Aggregator"],
    "fedplt.methods": ["Method", "PlanRequest"],
    "fedplt.federation.config": [
        "RunConfig",
        "ClientsConfig",
        "CutConfig",
        "DataConfig",
        "DiagnosticsConfig",
        "EngineConfig",
        "EvaluationConfig",
        "GroupConfig",
        "ModelConfig",
        "TrainingConfig",
    ],
    "fedplt.federation.fleet_config": ["FleetConfig"],
    "fedplt.federation.sampling_config": ["SamplingConfig"],
    "fedplt.federation.server_config": ["ServerConfig"],
    "fedplt.federation.engine": ["Engine"],
    "fedplt.federation.load_config": ["load_config"],
    "fedplt.federation.records": ["History", "RoundRecord"],
    "fedplt.engines.run": ["run", "resume"],
    "fedplt.comparison.run": ["compare"],
    "fedplt.engines.own_model": ["train"],
    "fedplt.errors": [
        "FedpltError",
        "ConfigError",
        "CutError",
        "DataError",
        "DivergedError",
        "FleetError",
        "PlanError",
        "RunError",
        "SamplingError",
        "UpdateError",
    ],
}
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 (they are strings)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedplt' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from fedplt.client.slices import TrainableSlices as TrainableSlices
    from fedplt.client.submodels import HeldModels as HeldModels
    from fedplt.client.train_only import train_only as train_only
    from fedplt.client.update import ClientUpdate as ClientUpdate
    from fedplt.comparison.run import compare as compare
    from fedplt.cutting.find_layers import cut as cut
    from fedplt.data.samples import TensorSamples as TensorSamples
    from fedplt.data.samples import TrainingData as TrainingData
    from fedplt.engines.own_model import train as train
    from fedplt.engines.run import resume as resume
    from fedplt.engines.run import run as run
    from fedplt.errors import ConfigError as ConfigError
    from fedplt.errors import CutError as CutError
    from fedplt.errors import DataError as DataError
    from fedplt.errors import DivergedError as DivergedError
    from fedplt.errors import FedpltError as FedpltError
    from fedplt.errors import FleetError as FleetError
    from fedplt.errors import PlanError as PlanError
    from fedplt.errors import RunError as RunError
    from fedplt.errors import SamplingError as SamplingError
    from fedplt.errors import UpdateError as UpdateError
    from fedplt.federation.config import ClientsConfig as ClientsConfig
    from fedplt.federation.config import CutConfig as CutConfig
    from fedplt.federation.config import DataConfig as DataConfig
    from fedplt.federation.config import DiagnosticsConfig as DiagnosticsConfig
    from fedplt.federation.config import EngineConfig as EngineConfig
    from fedplt.federation.config import EvaluationConfig as EvaluationConfig
    from fedplt.federation.config import GroupConfig as GroupConfig
    from fedplt.federation.config import ModelConfig as ModelConfig
    from fedplt.federation.config import RunConfig as RunConfig
    from fedplt.federation.config import TrainingConfig as TrainingConfig
    from fedplt.federation.engine import Engine as Engine
    from fedplt.federation.fleet_config import FleetConfig as FleetConfig
    from fedplt.federation.load_config import load_config as load_config
    from fedplt.federation.records import History as History
    from fedplt.federation.records import RoundRecord as RoundRecord
    from fedplt.federation.sampling_config import SamplingConfig as SamplingConfig
    from fedplt.federation.server_config import ServerConfig as ServerConfig
    from fedplt.fleet import DeviceProfile as DeviceProfile
    from fedplt.fleet import plan_fleet as plan_fleet
    from fedplt.kernels.flat_state import bind_state as bind_state
    from fedplt.methods import Method as Method
    from fedplt.methods import PlanRequest as PlanRequest
    from fedplt.planning.allocation import Allocation as Allocation
    from fedplt.planning.allocation import allocation_of as allocation_of
    from fedplt.planning.allocation import balanced_allocation as balanced_allocation
    from fedplt.planning.assignment import Assignment as Assignment
    from fedplt.planning.layers import Layer as Layer
    from fedplt.planning.layers import Layers as Layers
    from fedplt.planning.layers import TensorSpec as TensorSpec
    from fedplt.planning.plan import Plan as Plan
    from fedplt.planning.plan import make_plan as make_plan
    from fedplt.planning.recipe import LocalRecipe as LocalRecipe
    from fedplt.planning.submodel_plan import submodel_plan as submodel_plan
    from fedplt.sampling import sampling_probabilities as sampling_probabilities
    from fedplt.server.aggregation import Aggregator as Aggregator
    from fedplt.server.validation import validate as validate
