"""The sections and keys of a run's configuration, and their validation."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from fedplt.client import TrainingConfig
from fedplt.configuration.conflicts import refuse_unfit_sections
from fedplt.configuration.evaluation_config import DiagnosticsConfig, EvaluationConfig, TaskConfig
from fedplt.configuration.fleet_config import ON_NODES, FleetConfig
from fedplt.configuration.presets import apply_preset
from fedplt.configuration.sampling_config import SamplingConfig
from fedplt.configuration.server_config import ServerConfig
from fedplt.data import Scaling
from fedplt.errors import ConfigError
from fedplt.planning import DIFFERENCES, Encoding
from fedplt.schema import Section


def _folder_name(name: str) -> str:
    if not name.strip() or not name.isprintable() or not re.fullmatch(r"(?!\.)[^/\\]{1,100}", name):
        raise ValueError(
            f"{name!r:.60}: a name becomes the name of a folder: not empty, at most 100 "
            "characters, no slash, no dot at its start"
        )
    return name


FROM_PYTHON = "(given from Python)"
"""Stands for an object given to ``fedplt.train``: a model, data, a loss, a function."""
FolderName = Annotated[str, AfterValidator(_folder_name)]
Ratio = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
_KEYS_OF_SPLIT = {
    "given": ["split_file"],
    "shards": ["shards_per_client"],
    "dirichlet": ["alpha", "min_examples"],
}


class DataConfig(Section):
    """Which data set, and how it is split among the clients."""

    name: str = "fashion-mnist"
    """``fashion-mnist``, ``cifar10``, ``package.module:function`` that returns TrainingData, or
    ``nodes``: in a deployment the nodes have the data, and the server has none."""
    scaling: Scaling | None = None
    """Scaling of a built-in data set's images: ``unit`` (pixels in [0, 1]), ``symmetric`` (in
    [-1, 1]) or ``standard`` (mean 0 and standard deviation 1 per channel). Default: ``symmetric``
    for ``fashion-mnist``, ``standard`` for ``cifar10``."""
    split: Literal["iid", "dirichlet", "shards", "given"] = "iid"
    """Default: the split that the other keys belong to (``alpha``: ``dirichlet``), or ``iid``."""
    alpha: Annotated[float, Field(gt=0, le=1e6)] = 0.2
    """Dirichlet concentration: the smaller, the more skewed the clients' labels."""
    min_examples: Annotated[int, Field(ge=1)] = 10
    """Smallest number of examples per client (Dirichlet)."""
    shards_per_client: Annotated[int, Field(ge=1)] = 2
    split_file: str | None = None
    """For ``given``: a JSON file with one list of example indices per client."""

    @model_validator(mode="before")
    @classmethod
    def _split_of_the_keys(cls, values: Any) -> Any:
        """A key of one split selects that split: ``alpha`` alone means ``dirichlet``."""
        if not isinstance(values, dict) or "split" in values or values.get("whole"):
            return values  # "whole" is for a node's examples, which are not split
        for split, keys in _KEYS_OF_SPLIT.items():
            if any(values.get(key) is not None for key in keys):
                return {**values, "split": split}
        return values

    def refuse_conflicts(self) -> None:
        if (self.split == "given") != (self.split_file is not None):
            problem = "split = 'given' and split_file go together: set both or neither"
            raise ConfigError(problem, key="split_file", also=["split"])
        if ":" in self.name or self.name in (FROM_PYTHON, ON_NODES):
            instead = "or name a built-in data set"
            self.refuse_unused(["scaling"], f"name = {self.name!r}", instead)


class CutConfig(Section):
    """How a model is cut into layers: the arguments of :func:`fedplt.cut`."""

    groups: dict[str, str | list[str]] | None = None
    """Join modules into one layer by name pattern; default: the model's suggestion."""
    always: list[str] = []
    """Layers (patterns) that every client trains in full, such as a head."""
    never: list[str] = []
    """Modules or parameters (patterns) that no client trains, such as a backbone."""
    fused: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Linear modules (patterns) and how many equal blocks their outputs hold."""
    max_sublayers: Annotated[int, Field(ge=1)] | None = None


class ModelConfig(CutConfig):
    """Which model, and how it is cut."""

    name: str = "fcn"
    """``fcn``, ``cnn``, ``resnet8``, ``vit``, ``text``, or ``package.module:function`` that
    returns a torch module."""
    options: dict[str, Any] = {}
    weights: str | None = None
    """Start from this safetensors file instead of random weights."""
    input_shape: list[Annotated[int, Field(ge=1)]] | None = None
    """The shape of one example; for a model by import path, if the server has no data."""
    input_type: Literal["float", "integer"] = "float"


class GroupConfig(Section):
    """Clients with the same ratio and learning rate."""

    share: Annotated[float, Field(gt=0, le=1)] | None = None
    num_clients: Annotated[int, Field(ge=1)] | None = None
    """Number of clients in the group, instead of ``share``."""
    ratio: Ratio | None = None
    """Fraction of the model that each client of the group trains."""
    layer_ratios: list[Fraction] | None = None
    """Instead of ``ratio``: the fraction of each layer."""
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Learning rate of this group; default: that of ``[training]``."""

    def refuse_conflicts(self) -> None:
        if (self.share is None) == (self.num_clients is None):
            raise ConfigError("give either share or num_clients", key="share")
        if (self.ratio is None) == (self.layer_ratios is None):
            raise ConfigError("give either ratio or layer_ratios", key="ratio")


class ClientsConfig(Section):
    """How many clients there are, and their groups."""

    num_clients: Annotated[int, Field(ge=1, lt=10**7)] = 50
    num_examples: list[Annotated[int, Field(ge=1)]] | None = None
    """With data on the nodes: the number of examples of each client. Default: what the nodes
    report when they first join."""
    groups: Annotated[list[GroupConfig], Field(min_length=1)] = [GroupConfig(share=1.0, ratio=1.0)]
    learning_rates: list[Annotated[float, Field(gt=0)]] | None = None
    """Learning rate of each client, instead of those of the groups and of ``[training]``."""

    def refuse_conflicts(self) -> None:
        number = ["clients.num_clients"]
        for key in ("num_examples", "learning_rates"):
            given = getattr(self, key)
            if given is not None and len(given) != self.num_clients:
                problem = f"{len(given)} for {self.num_clients} clients; give one per client"
                raise ConfigError(problem, key=key, also=number)
        if self.learning_rates is not None and any(group.learning_rate for group in self.groups):
            problem = "the groups have a learning_rate; set one of the two"
            raise ConfigError(problem, key="learning_rates")
        counted = sum(group.num_clients or 0 for group in self.groups)
        shares = [group.share for group in self.groups if group.share is not None]
        if shares and counted:
            problem = "give every group a share, or every group num_clients, not both"
            raise ConfigError(problem, key="groups")
        if shares and not math.isclose(math.fsum(shares), 1, abs_tol=1e-6):
            total = math.fsum(shares)
            do = f"Add a group for the remaining {1 - total:.6g}." if total < 1 else "Lower some."
            problem = f"shares add up to {total:.6g}, they must add up to 1. {do}"
            raise ConfigError(problem, key="groups")
        if counted and counted != self.num_clients:
            problem = f"their num_clients add up to {counted}, not to {self.num_clients}"
            raise ConfigError(problem, key="groups", also=number)
        if 0 in (sizes := self.group_sizes()):
            index = sizes.index(0)
            raise ConfigError(
                f"a share of {self.groups[index].share} of {self.num_clients} clients is less than "
                "one client. Raise the share or num_clients, or remove the group.",
                key=f"groups.{index}",
            )

    def group_sizes(self) -> list[int]:
        """Clients per group; the groups with the largest remainders are rounded up."""
        if self.groups[0].num_clients is not None:
            return [group.num_clients or 0 for group in self.groups]
        exact = [(group.share or 0) * self.num_clients for group in self.groups]
        sizes = [math.floor(value + 1e-9) for value in exact]
        rests = sorted(range(len(exact)), key=lambda i: sizes[i] - exact[i])
        for index in rests[: self.num_clients - sum(sizes)]:
            sizes[index] += 1
        return sizes


class MessagesConfig(Section):
    """How models and updates are sent (``docs/beyond.md``)."""

    up: Encoding = "float32"
    """Updates: ``float32``, ``float16``, or ``int8``, ``int4``, ``int2`` in blocks of 128 values
    with a scale. The rounding error is added to the client's next upload (error feedback)."""
    down: Encoding = "float32"
    """The model: ``float32``, ``float16`` or ``int8``; ``int4`` and ``int2`` send differences to
    the model that the clients of the last round have."""

    @property
    def need_local_state(self) -> bool:
        """Whether clients keep state from one round to the next."""
        return self.up != "float32" or self.down in DIFFERENCES


class PrivacyConfig(Section):
    """Client-level differential privacy of the released models (``docs/privacy.md``)."""

    clip: Annotated[float, Field(gt=0)]
    """Updates are scaled down to at most this Euclidean norm, over the client's whole slice."""
    noise_multiplier: Annotated[float, Field(ge=0.1)]
    """Standard deviation of the noise on the sum of the updates, as a multiple of ``clip``;
    far below 1 there is no protection."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The delta for which epsilon is computed; less than one over the number of clients."""
    noise_seed: Annotated[int, Field(ge=0)] | None = None
    """Draw the noise and the clients from this seed, to repeat a run. Whoever knows it can remove
    the noise. Default: a secret key from the operating system, stored in the checkpoint."""


class EngineConfig(Section):
    """The engine that runs the clients. In the simulator, only ``device`` may change results."""

    name: Literal["simulator", "flower"] = "simulator"
    """``simulator``: worker processes on this machine. ``flower``: Flower's simulation of nodes
    on this machine, or, in a deployment, its nodes."""
    device: Annotated[
        str,
        Field(
            pattern=r"^(cpu|auto|cuda(:\d+)?|mps)$",
            examples=["cpu", "auto", "cuda", "cuda:1", "mps"],
        ),
    ] = "cpu"
    """``cpu``, ``cuda``, ``cuda:1``, ``mps``, or ``auto``: ``cuda`` or ``mps`` if torch finds one,
    else ``cpu``; the run records which. Every worker keeps the data on its device."""
    workers: Annotated[int, Field(ge=1)] | None = None
    """Worker processes; default: one per core (one on a GPU)."""
    start_method: Literal["fork", "spawn"] | None = None
    check: bool = True
    """Before the first round, compare a step of partial training with full gradients times mask on
    a few of the run's examples, and refuse to start if they differ."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 1800.0
    """Stop the run if no worker answers for this long."""
    round_timeout_seconds: Annotated[float, Field(gt=0)] = 3600.0
    """``flower``: clients that have not answered after this long are left out of the round."""
    pin_nodes: bool = False
    """``flower`` with node authentication: a client belongs to the first node that joins as it."""
    on_round: str | None = None
    """``package.module:function``, called in order with the :class:`fedplt.RoundRecord` of every
    round, for example to log it."""

    def refuse_conflicts(self) -> None:
        if self.name == "flower":
            self.refuse_unused(["device"], "name = 'flower'", "or set name = 'simulator'")


class RunConfig(Section):
    """The whole configuration of a run."""

    name: FolderName = "run"
    seed: Annotated[int, Field(ge=0)] = 0
    rounds: Annotated[int, Field(ge=1, le=10**9)] = 60
    checkpoint_every: Annotated[int, Field(ge=1)] = 10
    code: str | None = None
    """Folder of modules that are named by import path; default: the folder of the TOML file."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    clients: ClientsConfig = ClientsConfig()
    fleet: FleetConfig | None = None
    method: dict[str, Any] = {"name": "fedplt"}
    sampling: SamplingConfig = SamplingConfig()
    training: TrainingConfig = TrainingConfig()
    server: ServerConfig = ServerConfig()
    messages: MessagesConfig = MessagesConfig()
    privacy: PrivacyConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, values: Any) -> Any:
        return apply_preset(values) if isinstance(values, dict) else values

    def refuse_conflicts(self) -> None:
        refuse_unfit_sections(self)

    @field_validator("method")
    @classmethod
    def _named(cls, method: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(method.get("name"), str):
            raise ConfigError("this key is missing, such as name = 'fedplt'", key="name")
        return method


def default_folder(config: RunConfig) -> Path:
    return Path("runs") / f"{config.name}-seed{config.seed}"
