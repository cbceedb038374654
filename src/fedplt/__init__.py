"""Federated learning on unequal devices by partial layer training (FedPLT).

Run a configuration, as ``fedplt run`` does::

    history = fedplt.run("fashion-mnist", out="runs/mine")

Train your own model on your own data::

    history = fedplt.train(model, (x, y), (x_val, y_val), ratios=[1.0, 0.29, 0.06], rounds=20)

Plan which client trains what, and train a slice in your own loop::

    layers = fedplt.cut(model, example)
    plan = fedplt.make_plan(layers, ratios=[1.0, 0.29, 0.06])
    with fedplt.train_only(model, plan.assignment(2)) as part:
        optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
        ...
    update = part.update(num_examples=600)
"""

from __future__ import annotations

import importlib
import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # 'python -m fedplt': Python has put the current folder first, and a typing.py or jinja2.py
    # there would be imported instead of the installed one. (Its own runpy has been by then.)
    _module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    if _module.partition(".")[0] == "fedplt":
        sys.path.append(sys.path.pop(0))

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

# Imported on first use: planning needs only NumPy, and torch takes seconds to import.
_PUBLIC = {
    "fedplt.planning": [
        "Allocation", "Assignment", "Layer", "Layers", "LocalRecipe", "Plan", "TensorSpec",
        "allocation_of", "balanced_allocation", "make_plan", "submodel_plan",
    ],
    "fedplt.sampling": [
        "Sampler", "SamplingRequest", "sampling_probabilities",
    ],
    "fedplt.fleet": [
        "DeviceProfile", "plan_fleet",
    ],
    "fedplt.data": [
        "TensorSamples", "TrainingData",
    ],
    "fedplt.kernels": [
        "bind_state",
    ],
    "fedplt.cutting": [
        "Slicing", "add_layer_kind", "cut",
    ],
    "fedplt.client": [
        "CheckReport", "ClientResult", "ClientTrainer", "ClientUpdate", "Evaluation", "HeldModels",
        "Metric", "MetricInfo", "Origin", "Task", "TrainOrder", "TrainableSlices", "check",
        "train_only",
    ],
    "fedplt.server": [
        "AggregationRule", "Aggregator", "validate",
    ],
    "fedplt.methods": [
        "Method", "PlanRequest",
    ],
    "fedplt.configuration": [
        "ClientsConfig", "CutConfig", "DataConfig", "DiagnosticsConfig", "EngineConfig",
        "EvaluationConfig", "FleetConfig", "GroupConfig", "ModelConfig", "PrivacyConfig",
        "RunConfig", "SamplingConfig", "ServerConfig", "TaskConfig", "TrainingConfig",
        "load_config", "read_fleet",
    ],
    "fedplt.federation": [
        "Engine", "History", "Job", "RoundRecord", "load_history",
    ],
    "fedplt.api": [
        "evaluate", "load", "resume", "run", "train",
    ],
    "fedplt.report.export": [
        "scalars",
    ],
    "fedplt.comparison": [
        "advise", "compare",
    ],
    "fedplt.errors": [
        "ConfigError", "CutError", "DataError", "DamagedError", "DivergedError", "ExampleError",
        "FedpltError", "FleetError", "GradientError", "PlanError", "RunError", "SamplingError",
        "UntrainedWarning", "UpdateError",
    ],
}  # fmt: skip
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 (they are strings)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedplt' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from fedplt.api import evaluate as evaluate
    from fedplt.api import load as load
    from fedplt.api import resume as resume
    from fedplt.api import run as run
    from fedplt.api import train as train
    from fedplt.client import CheckReport as CheckReport
    from fedplt.client import ClientResult as ClientResult
    from fedplt.client import ClientTrainer as ClientTrainer
    from fedplt.client import ClientUpdate as ClientUpdate
    from fedplt.client import Evaluation as Evaluation
    from fedplt.client import HeldModels as HeldModels
    from fedplt.client import Metric as Metric
    from fedplt.client import MetricInfo as MetricInfo
    from fedplt.client import Origin as Origin
    from fedplt.client import Task as Task
    from fedplt.client import TrainableSlices as TrainableSlices
    from fedplt.client import TrainOrder as TrainOrder
    from fedplt.client import check as check
    from fedplt.client import train_only as train_only
    from fedplt.comparison import advise as advise
    from fedplt.comparison import compare as compare
    from fedplt.configuration import ClientsConfig as ClientsConfig
    from fedplt.configuration import CutConfig as CutConfig
    from fedplt.configuration import DataConfig as DataConfig
    from fedplt.configuration import DiagnosticsConfig as DiagnosticsConfig
    from fedplt.configuration import EngineConfig as EngineConfig
    from fedplt.configuration import EvaluationConfig as EvaluationConfig
    from fedplt.configuration import FleetConfig as FleetConfig
    from fedplt.configuration import GroupConfig as GroupConfig
    from fedplt.configuration import ModelConfig as ModelConfig
    from fedplt.configuration import PrivacyConfig as PrivacyConfig
    from fedplt.configuration import RunConfig as RunConfig
    from fedplt.configuration import SamplingConfig as SamplingConfig
    from fedplt.configuration import ServerConfig as ServerConfig
    from fedplt.configuration import TaskConfig as TaskConfig
    from fedplt.configuration import TrainingConfig as TrainingConfig
    from fedplt.configuration import load_config as load_config
    from fedplt.configuration import read_fleet as read_fleet
    from fedplt.cutting import Slicing as Slicing
    from fedplt.cutting import add_layer_kind as add_layer_kind
    from fedplt.cutting import cut as cut
    from fedplt.data import TensorSamples as TensorSamples
    from fedplt.data import TrainingData as TrainingData
    from fedplt.errors import ConfigError as ConfigError
    from fedplt.errors import CutError as CutError
    from fedplt.errors import DamagedError as DamagedError
    from fedplt.errors import DataError as DataError
    from fedplt.errors import DivergedError as DivergedError
    from fedplt.errors import ExampleError as ExampleError
    from fedplt.errors import FedpltError as FedpltError
    from fedplt.errors import FleetError as FleetError
    from fedplt.errors import GradientError as GradientError
    from fedplt.errors import PlanError as PlanError
    from fedplt.errors import RunError as RunError
    from fedplt.errors import SamplingError as SamplingError
    from fedplt.errors import UntrainedWarning as UntrainedWarning
    from fedplt.errors import UpdateError as UpdateError
    from fedplt.federation import Engine as Engine
    from fedplt.federation import History as History
    from fedplt.federation import Job as Job
    from fedplt.federation import RoundRecord as RoundRecord
    from fedplt.federation import load_history as load_history
    from fedplt.fleet import DeviceProfile as DeviceProfile
    from fedplt.fleet import plan_fleet as plan_fleet
    from fedplt.kernels import bind_state as bind_state
    from fedplt.methods import Method as Method
    from fedplt.methods import PlanRequest as PlanRequest
    from fedplt.planning import Allocation as Allocation
    from fedplt.planning import Assignment as Assignment
    from fedplt.planning import Layer as Layer
    from fedplt.planning import Layers as Layers
    from fedplt.planning import LocalRecipe as LocalRecipe
    from fedplt.planning import Plan as Plan
    from fedplt.planning import TensorSpec as TensorSpec
    from fedplt.planning import allocation_of as allocation_of
    from fedplt.planning import balanced_allocation as balanced_allocation
    from fedplt.planning import make_plan as make_plan
    from fedplt.planning import submodel_plan as submodel_plan
    from fedplt.report.export import scalars as scalars
    from fedplt.sampling import Sampler as Sampler
    from fedplt.sampling import SamplingRequest as SamplingRequest
    from fedplt.sampling import sampling_probabilities as sampling_probabilities
    from fedplt.server import AggregationRule as AggregationRule
    from fedplt.server import Aggregator as Aggregator
    from fedplt.server import validate as validate
