"""The sections and keys of a run's configuration, and their validation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fedplt.configuration.evaluation_config import DiagnosticsConfig, EvaluationConfig, TaskConfig
from fedplt.configuration.fleet_config import FleetConfig
from fedplt.configuration.sampling_config import SamplingConfig
from fedplt.configuration.section import FROM_PYTHON, ON_NODES, FolderName, Section
from fedplt.configuration.server_config import ServerConfig
from fedplt.configuration.training_config import TrainingConfig
from fedplt.data import Scaling
from fedplt.encoding import Encoding
from fedplt.errors import ConfigError


class PrivacyConfig(Section):
    """Client-level differential privacy of the released models (``docs/privacy.md``)."""

    clip: Annotated[float, Field(gt=0)]
    """Updates are scaled down to at most this Euclidean norm, over the client's whole slice."""
    noise_multiplier: Annotated[float, Field(ge=0.1)]
    """Standard deviation of the noise on the sum of the updates, in clips; far below 1 it protects
    nobody."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The delta for which epsilon is stated; less than one over the number of clients."""
    noise_seed: Annotated[int, Field(ge=0)] | None = None
    """Draw the noise and the clients from this seed, to repeat a run. Whoever knows it can remove
    the noise. Default: a secret key from the operating system, kept in the checkpoint."""


def refuse_unprivate(config: RunConfig) -> None:
    """Raise ValueError where something in the configuration would void the guarantee."""
    settings = config.privacy
    if settings is None:
        return
    sampling, server, number = config.sampling, config.server, config.clients.num_clients
    if settings.delta * number >= 1:
        raise ValueError(
            f"privacy.delta is {settings.delta:g}; with {number} clients it must be below "
            f"{1 / number:g} (one over the number of clients)."
        )
    needs = "[privacy] needs"
    if sampling.name not in ("all", "bernoulli"):
        why = "depends on the clients' data" if sampling.by_norm else "is not independent"
        raise ValueError(
            f"{needs} sampling.name = 'bernoulli' (with sampling.probability) or 'all': the choice "
            f"of {sampling.name!r} {why}."
        )
    if sampling.estimator is not None:
        raise ValueError(
            f"{needs} no sampling.estimator: it divides by fixed numbers, the clients that the "
            "plan assigns to a block times the probability. Leave it out."
        )
    if server.aggregation != "mean":
        raise ValueError(
            f"{needs} server.aggregation = 'mean': how much one client can change the result of "
            f"{server.aggregation!r} depends on the other clients' data."
        )
    if server.weights != "equal":
        raise ValueError(
            f"{needs} server.weights = 'equal': numbers of examples are the clients' data, and as "
            "weights they would be in the result."
        )
    if server.min_clients:
        raise ValueError(
            f"{needs} server.min_clients = 0: whether a round counts would tell who took part."
        )
    for key in ("keep_best", "stop_after"):
        given = getattr(config.evaluation, key)
        if given and "nodes" in (config.evaluation.on, config.data.name):
            raise ValueError(
                f"{needs} no evaluation.{key} ({given!r} was given) where the nodes evaluate: "
                "their scores have no noise, and which model is released would depend on them. "
                "Leave it out, or evaluate on data of the server (evaluation.on = 'server')."
            )


class MessagesConfig(Section):
    """How models and updates are sent (``docs/beyond.md``)."""

    up: Encoding = "float32"
    """Updates: ``float32``, ``float16``, or ``int8``, ``int4``, ``int2`` in blocks of 128 values
    with a scale; what an upload loses is added to the client's next one."""
    down: Encoding = "float32"
    """The model: ``float32``, ``float16`` or ``int8``; ``int4`` and ``int2`` send differences to
    what the clients of the last round have."""


def refuse_memory(config: RunConfig) -> None:
    """Raise ValueError where a memory of updates or encoded messages do not fit."""
    server, messages, sampling = config.server, config.messages, config.sampling
    if server.memory is not None and config.privacy:
        raise ValueError(
            "server.memory cannot be used with [privacy]: an update that is added again in later "
            "rounds changes more than the noise covers. Leave out one of them."
        )
    if server.memory is not None and (sampling.by_norm or sampling.estimator_used == "unbiased"):
        raise ValueError(
            f"server.memory cannot be used with sampling.name = {sampling.name!r} and the "
            f"estimator {sampling.estimator_used!r}: their weights hold for the clients of one "
            "round. Sample with 'uniform' or 'all', or leave out server.memory."
        )
    if messages.up != "float32" and config.privacy:
        raise ValueError(
            f"messages.up = {messages.up!r} cannot be used with [privacy]: what an upload loses is "
            "added to the next one, which the noise does not cover. Set messages.up = 'float32'."
        )


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
    """Of a built-in data set's images: ``unit`` (pixels in [0, 1]), ``symmetric`` (in [-1, 1]) or
    ``standard`` (mean 0 and standard deviation 1 per channel). Default: ``symmetric`` for
    ``fashion-mnist``, ``standard`` for ``cifar10``."""
    split: Literal["iid", "dirichlet", "shards", "given"] = "iid"
    """Default: the split that the other keys belong to (``alpha``: ``dirichlet``), else ``iid``."""
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
        """A key of one split chooses it: ``alpha`` alone must not be without effect."""
        if not isinstance(values, dict) or "split" in values or values.get("whole"):
            return values  # whole: a node's own examples, which are not split
        for split, keys in _KEYS_OF_SPLIT.items():
            if any(values.get(key) is not None for key in keys):
                return {**values, "split": split}
        return values

    @model_validator(mode="after")
    def _split_file(self) -> DataConfig:
        if (self.split == "given") != (self.split_file is not None):
            raise ValueError("split = 'given' and split_file go together: set both or neither")
        return self

    @model_validator(mode="after")
    def _scaled_images(self) -> DataConfig:
        if ":" in self.name or self.name in (FROM_PYTHON, ON_NODES):
            instead = "or name a built-in data set"
            self.refuse_unused(["scaling"], f"name = {self.name!r}", instead)
        return self


class CutConfig(Section):
    """How a model is cut into layers: the arguments of :func:`fedplt.cut`."""

    groups: dict[str, str | list[str]] | None = None
    """Join modules into one layer by name pattern; default: the model's own suggestion."""
    always: list[str] = []
    """Layers (patterns) that every client trains in full, such as a head."""
    never: list[str] = []
    """Modules or parameters (patterns) that no client trains, such as a backbone."""
    fused: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Linear modules (patterns) and how many equal blocks their outputs hold, cut alike."""
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
    """The shape of one example, for a server without data and a model of one's own."""
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

    @model_validator(mode="after")
    def _one_of(self) -> GroupConfig:
        if (self.share is None) == (self.num_clients is None):
            raise ValueError("give either share or num_clients")
        if (self.ratio is None) == (self.layer_ratios is None):
            raise ValueError("give either ratio or layer_ratios")
        return self


class ClientsConfig(Section):
    """How many clients there are, and their groups."""

    num_clients: Annotated[int, Field(ge=1, lt=10**7)] = 50
    num_examples: list[Annotated[int, Field(ge=1)]] | None = None
    """With data on the nodes: the examples of each client. Default: what the nodes say when they
    join for the first time."""
    groups: Annotated[list[GroupConfig], Field(min_length=1)] = [GroupConfig(share=1.0, ratio=1.0)]
    learning_rates: list[Annotated[float, Field(gt=0)]] | None = None
    """One per client, instead of those of the groups and of ``[training]``."""

    @model_validator(mode="after")
    def _one_rate_each(self) -> ClientsConfig:
        rates = self.learning_rates
        if rates is not None and len(rates) != self.num_clients:
            raise ValueError(
                f"learning_rates: {len(rates)} were given for {self.num_clients} clients "
                "(clients.num_clients); give one per client"
            )
        if rates is not None and any(group.learning_rate for group in self.groups):
            raise ValueError("learning_rates: the groups have a learning_rate; set one of the two")
        return self

    @model_validator(mode="after")
    def _adds_up(self) -> ClientsConfig:
        counted = sum(group.num_clients or 0 for group in self.groups)
        shares = [group.share for group in self.groups if group.share is not None]
        if shares and counted:
            raise ValueError("give every group a share, or every group num_clients, not both")
        if shares and not math.isclose(math.fsum(shares), 1, abs_tol=1e-6):
            total = math.fsum(shares)
            do = f"Add a group for the remaining {1 - total:.6g}." if total < 1 else "Lower some."
            raise ValueError(f"groups: shares add up to {total:.6g}, they must add up to 1. {do}")
        if counted and counted != self.num_clients:
            raise ValueError(
                f"groups: their num_clients add up to {counted}, "
                f"but clients.num_clients is {self.num_clients}"
            )
        return self

    def group_sizes(self) -> list[int]:
        """Clients per group; shares are rounded so that each client is in a group."""
        if self.groups[0].num_clients is not None:
            return [group.num_clients or 0 for group in self.groups]
        exact = [(group.share or 0) * self.num_clients for group in self.groups]
        sizes = [math.floor(value + 1e-9) for value in exact]
        rests = sorted(range(len(exact)), key=lambda i: sizes[i] - exact[i])
        for index in rests[: self.num_clients - sum(sizes)]:
            sizes[index] += 1
        return sizes

    @model_validator(mode="after")
    def _no_empty_group(self) -> ClientsConfig:
        sizes = self.group_sizes()
        if 0 in sizes:
            index = sizes.index(0)
            raise ValueError(
                f"groups.{index}: a share of {self.groups[index].share} of {self.num_clients} "
                "clients is less than one client. Raise the share or num_clients, or remove the "
                "group."
            )
        return self


class EngineConfig(Section):
    """What runs the clients, and how. Only ``device`` may change the results."""

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
    a few of the run's own examples, and refuse to start where they differ."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 1800.0
    """Stop the run if no worker answers for this long."""
    round_timeout_seconds: Annotated[float, Field(gt=0)] = 3600.0
    """``flower``: clients that have not answered after this long are left out of the round."""
    pin_nodes: bool = False
    """``flower`` with node authentication: a client stays with the node that was it first."""
    on_round: str | None = None
    """``package.module:function``, called with the :class:`fedplt.RoundRecord` of every round, in
    order: to log it elsewhere."""

    @model_validator(mode="after")
    def _on_this_machine(self) -> EngineConfig:
        if self.name == "flower":
            self.refuse_unused(["device"], "name = 'flower'", "or set name = 'simulator'")
        return self


class RunConfig(Section):
    """The whole configuration of a run."""

    name: FolderName = "run"
    seed: Annotated[int, Field(ge=0)] = 0
    rounds: Annotated[int, Field(ge=1, le=10**9)] = 60
    checkpoint_every: Annotated[int, Field(ge=1)] = 10
    code: str | None = None
    """Folder of the modules that are named by import path; default: that of the TOML file."""
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

    @model_validator(mode="after")
    def _needs_nodes(self) -> RunConfig:
        replan = self.fleet.replan if self.fleet else "never"
        for key, value, on_nodes in (
            ("data.name", self.data.name, self.data.name == ON_NODES),
            ("evaluation.on", self.evaluation.on, self.evaluation.on != "server"),
            ("fleet.replan", replan, replan != "never"),
        ):
            if on_nodes and self.engine.name == "simulator":
                raise ValueError(
                    f"{key} is {value!r}, but the simulator has no nodes: set engine.name = "
                    "'flower', or another value here."
                )
        return self

    @model_validator(mode="after")
    def _enough_clients(self) -> RunConfig:
        asked, there = self.sampling.num_clients or 1, self.clients.num_clients
        if asked > there:
            raise ValueError(
                f"sampling.num_clients is {asked}, but there are {there} clients "
                "(clients.num_clients). Lower the first or raise the second."
            )
        if (self.sampling.budget or 0) > there:
            raise ValueError(
                f"sampling.budget is {self.sampling.budget:g}, but there are {there} clients "
                "(clients.num_clients): each would always be chosen. Lower the budget, or set "
                "sampling.name = 'all'."
            )
        return self

    @model_validator(mode="after")
    def _rule_fits_the_sampling(self) -> RunConfig:
        if ":" not in self.server.aggregation:
            self.refuse_weighted_votes()
        refuse_unprivate(self)
        refuse_memory(self)
        return self

    def refuse_weighted_votes(self) -> None:
        """Refuse weights by probability with a rule that has none; imports a rule by path."""
        server, sampling = self.server, self.sampling
        weighs = sampling.by_norm or sampling.estimator_used == "unbiased"
        if weighs and server.rule.counts_clients:
            raise ConfigError(
                f"server.aggregation = {server.aggregation!r} counts every client once, but "
                f"sampling.name = {sampling.name!r} with the estimator {sampling.estimator_used!r} "
                "weighs each by one over its probability. Set server.aggregation = 'clipped-mean', "
                "or sample with 'uniform' or 'all'."
            )

    @field_validator("method")
    @classmethod
    def _named(cls, method: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(method.get("name"), str):
            raise ValueError("method.name is missing, such as name = 'fedplt'")
        return method


def default_folder(config: RunConfig) -> Path:
    return Path("runs") / f"{config.name}-seed{config.seed}"
