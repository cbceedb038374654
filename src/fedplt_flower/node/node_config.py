"""A node's configuration, ``node.toml``: the client's id, data, model code and task.

The file stays on the node, and nothing in it comes from the server. Paths are relative to its
folder.

    name = "n1"
    client = 0
    num_clients = 3

    [data]
    name = "my_package.data:load"
    whole = true

    [model]
    name = "my_package.models:build"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator
from torch import nn

from fedplt.configuration import (
    ClientsConfig,
    DataConfig,
    ModelConfig,
    RunConfig,
    TaskConfig,
    load_section,
    read_fleet,
)
from fedplt.data import TrainingData, split_given
from fedplt.errors import ConfigError, FleetError
from fedplt.federation import Job, load_data, make_job, split_data
from fedplt.fleet import DeviceProfile
from fedplt.imports import search_also
from fedplt.models import build_model
from fedplt.schema import Section

SPLIT_KEYS = ("split", "alpha", "min_examples", "shards_per_client", "split_file", "seed")


class NodeDataConfig(DataConfig):
    """The node's data: its part of a data set that all nodes have, or its own data set."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the split; must be the run's seed, so that nodes take disjoint parts."""
    whole: bool = False
    """Whether the function returns only this node's examples, which are then not split."""

    @model_validator(mode="after")
    def _whole_or_split(self) -> NodeDataConfig:
        if self.whole:
            self.refuse_unused(SPLIT_KEYS, "whole = true", "or set whole = false")
        if self.whole and ":" not in self.name:
            raise ValueError(
                f"whole = true would train this node on all of {self.name!r}: name a function "
                "that returns the node's own examples ('my_package.data:load'), or set "
                "whole = false."
            )
        return self


class NodeConfig(Section):
    """The content of ``node.toml``."""

    name: Annotated[str, Field(min_length=1)]
    client: Annotated[int, Field(ge=0)]
    """The client's id in the run: 0, 1, ..."""
    num_clients: Annotated[int, Field(ge=1)]
    data: NodeDataConfig = NodeDataConfig()
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    code: str = "."
    """Folder of the modules that ``[data]``, ``[model]`` and ``[task]`` name."""
    state: str = "state"
    """Folder for local state that never leaves the node."""
    limits: str = "limits.toml"
    """The owner's limits; a missing file allows everything."""
    profile: str | None = None
    """A file that describes this device, written by ``fedplt probe --out``; the server
    needs it to plan ratios."""

    @model_validator(mode="after")
    def _client_of_the_run(self) -> NodeConfig:
        if self.client >= self.num_clients:
            raise ValueError(
                f"client is {self.client}, but with num_clients = {self.num_clients} the clients "
                f"are 0 to {self.num_clients - 1}."
            )
        return self

    def run_config(self) -> RunConfig:
        """The part of the run's configuration that a node knows."""
        values = self.data.model_dump(exclude={"seed", "whole"})
        return RunConfig(
            seed=self.data.seed,
            data=DataConfig(**values),
            model=self.model,
            task=self.task,
            clients=ClientsConfig(num_clients=self.num_clients),
        )


def load_node(path: str | Path) -> NodeConfig:
    """Read ``node.toml``; the paths of the result are absolute, and its code can be imported."""
    path = Path(path).absolute()
    node = load_section(NodeConfig, path, ConfigError)
    given = {key: getattr(node, key) for key in ("code", "state", "limits", "profile")}
    update = {key: str(path.parent / value) for key, value in given.items() if value is not None}
    search_also(update["code"])
    if node.data.split_file is not None:
        file = str(path.parent / node.data.split_file)
        data = node.data.model_copy(update={"split_file": file})
        return node.model_copy(update={**update, "data": data})
    return node.model_copy(update=update)


def node_data(node: NodeConfig) -> TrainingData:
    """The node's training examples, in the simulator's order."""
    config = node.run_config()
    data = load_data(config)
    if not node.data.whole:
        mine = split_data(config, data.train).client(node.client)
        data = TrainingData(data.train.arranged(mine), data.validation, data.test)
    if not len(data.train):
        raise ConfigError(f"node {node.name} has no training examples.", key="data.name")
    return data


def node_model(node: NodeConfig) -> nn.Module:
    """The node's model; the server's weights replace its own."""
    return build_model(node.model.name, node.model.options, node.data.seed)


def node_device(node: NodeConfig) -> DeviceProfile | None:
    """The device in the file ``profile``; None if no file is given."""
    if node.profile is None:
        return None
    try:
        devices = read_fleet(Path(node.profile)).devices
    except FleetError as error:
        raise ConfigError(str(error), key="profile") from error
    if len(devices) != 1 or devices[0].count != 1:
        raise ConfigError(
            f"{node.profile} must describe one device, this one; 'fedplt probe --out' "
            "writes such a file.",
            key="profile",
        )
    return devices[0]


def node_job(node: NodeConfig) -> Job:
    """A job with this client only; the server's orders contain the training settings."""
    data = node_data(node)
    config = node.run_config().model_copy(update={"clients": ClientsConfig(num_clients=1)})
    everything = split_given([list(range(len(data.train)))], len(data.train))
    return make_job(config, node_model(node), data, split=everything, task=node.task.task())
