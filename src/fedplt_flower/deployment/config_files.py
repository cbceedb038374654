"""``run.toml`` and each ``node.toml`` of a deployment, from ``nodes.csv`` and a configuration.

``nodes.csv`` has one node per line; the first is client 0::

    name,ratio
    hospital-a,1.0
    phone-7,0.25

An optional column ``learning_rate`` sets a node's learning rate. Without the column ``ratio``, the
server plans the ratios from the device profiles that the nodes send.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedplt.configuration import (
    ON_NODES,
    RunConfig,
    Source,
    csv_rows,
    make_absolute,
    parse_config,
    parse_toml,
    read_text,
)
from fedplt.errors import ConfigError, did_you_mean
from fedplt.federation import FEWEST_CLIENTS
from fedplt.schema import first_problem

EXAMPLE = "name,ratio"
NUMBERS = ("ratio", "learning_rate")
"""Optional columns with numbers."""
ROUND_TIMEOUT_SECONDS = 600.0
MAX_RMS = 1.0
"""Weights are of this order of magnitude, so a round changes them by less."""
CLIP = 1.0
DEFAULT: dict[str, Any] = {
    "name": "deployment",
    "seed": 1,
    "rounds": 3,
    "checkpoint_every": 1,
    "data": {"name": "fashion-mnist", "split": "dirichlet", "alpha": 0.2},
    "model": {"name": "fcn"},
    "method": {"name": "fedplt"},
    "training": {"local_epochs": 1, "batch_size": 64, "learning_rate": 0.01},
}
PROFILE = "profile.toml"
"""A node's device profile, if the server plans the ratios."""
SPLIT_FILE = "split.json"
"""The name of ``data.split_file`` in the folders of the server and the nodes."""


class Node(BaseModel):
    """A line of ``nodes.csv``."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    name: str
    client: int
    ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    learning_rate: Annotated[float, Field(gt=0)] | None = None

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
            raise ValueError(
                f"{name!r} cannot name a node. Use up to 63 letters, digits, '-' and '_', such as "
                "hospital-a."
            )
        return name


def read_nodes(path: Path) -> tuple[Node, ...]:
    """The nodes in a file; errors name the line."""
    nodes: list[Node] = []
    places: dict[str, str] = {}
    text = read_text(path, ConfigError)
    for place, row in csv_rows(text, path, ConfigError, _check_columns, EXAMPLE):
        try:
            node = Node.model_validate({"name": "", **row, "client": len(nodes)})
        except ValidationError as error:
            raise ConfigError(f"{place}: {first_problem(error)}") from error
        # Names become folders, and some file systems ignore case.
        if (taken := places.get(node.name.lower())) is not None:
            raise ConfigError(
                f"{place}: the name {node.name!r} is taken already ({taken}). Names must differ in "
                "more than upper and lower case."
            )
        places[node.name.lower()] = place
        nodes.append(node)
    if not nodes:
        raise ConfigError(f"{path} has no nodes: add a line below the header, such as n1,0.5.")
    return tuple(nodes)


def _check_columns(names: list[str]) -> None:
    known = ("name", *NUMBERS)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"the column {name!r} is there twice.")
        if name not in known:
            raise ConfigError(f"there is no column {name!r}. {did_you_mean(name, known)}")
    if "name" not in names:
        raise ConfigError(
            f"the column 'name' is missing. The first line names the columns: {EXAMPLE}."
        )


def client_groups(nodes: tuple[Node, ...]) -> list[dict[str, Any]]:
    """``[[clients.groups]]`` of a run: consecutive nodes with equal settings form one group."""
    groups = []
    for (ratio, rate), alike in groupby(nodes, lambda node: (node.ratio, node.learning_rate)):
        group: dict[str, Any] = {"num_clients": len(list(alike)), "ratio": ratio}
        groups.append(group if rate is None else {**group, "learning_rate": rate})
    return groups


def run_values(path: Path | None, nodes: tuple[Node, ...]) -> tuple[dict[str, Any], RunConfig]:
    """The run's configuration with the clients of the deployment, as plain values and checked."""
    values, where = dict(DEFAULT), ""
    if path is not None:
        where = str(path)
        text = read_text(path, ConfigError)
        values = parse_toml(text, path, ConfigError)
        make_absolute(values, path.parent)
        values.pop("code", None)  # the server and the nodes each have their own folder
        values["engine"] = {**values.get("engine", {}), "name": "flower"}
        _refuse_unsupported(parse_config(values, Source(text, where)), path)
        if "checkpoint_every" not in values:
            values["checkpoint_every"] = 1  # rounds are long, and the server may restart
    clients: dict[str, Any] = {"num_clients": len(nodes)}
    _check_ratios(nodes, planned="fleet" in values)
    if "fleet" not in values:
        clients["groups"] = client_groups(nodes)
    engine = {"round_timeout_seconds": ROUND_TIMEOUT_SECONDS, **values.get("engine", {})}
    values |= {
        "clients": clients,
        "server": {**_default_bounds(values, len(nodes)), **values.get("server", {})},
        "engine": {**engine, "name": "flower", "pin_nodes": True},
    }
    return values, parse_config(
        values, Source(file=f"{where}, with the nodes' clients" if where else "")
    )


def _default_bounds(values: dict[str, Any], number: int) -> dict[str, Any]:
    """Limits on the influence of one client, for keys that the configuration leaves out."""
    if "privacy" in values:
        return {}  # privacy clips updates itself, and every round counts
    least = max(1, number // 2, FEWEST_CLIENTS if number >= FEWEST_CLIENTS else 0)
    sampling = values.get("sampling", {})
    least = min(least, sampling.get("num_clients") or least)
    bounds: dict[str, Any] = {"min_clients": least, "max_rms": MAX_RMS}
    if "budget" in sampling:  # the number of drawn clients varies: few are not a failure
        del bounds["min_clients"]
    if "aggregation" not in values.get("server", {}):
        bounds |= {"aggregation": "clipped-mean", "clip": CLIP}
    return bounds


def _refuse_unsupported(config: RunConfig, path: Path) -> None:
    """Refuse settings that ``run.toml`` would replace, or that cannot be sent to nodes."""
    if config.fleet is not None and config.fleet.devices != ON_NODES:
        raise ConfigError(
            f"{path}: a deployment takes its ratios from nodes.csv, or plans them from its nodes' "
            "profiles (fleet.devices = 'nodes'), not from a file of devices. Set that, or remove "
            "[fleet] and put the ratios that 'fedplt fleet' plans into nodes.csv."
        )
    given: dict[str, object] = {
        "clients.learning_rates": config.clients.learning_rates,
        "training.augment": config.training.augment,
    }
    for index, group in enumerate(config.clients.groups):
        given[f"clients.groups.{index}.layer_ratios"] = group.layer_ratios
        given[f"clients.groups.{index}.learning_rate"] = group.learning_rate
    for key, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{path}: {key} would be lost: a deployment takes its clients from nodes.csv, and "
                "its nodes have their own data and code. Remove it; nodes.csv may have a column "
                "learning_rate."
            )


def _check_ratios(nodes: tuple[Node, ...], *, planned: bool) -> None:
    """Refuse ratios from both ``nodes.csv`` and ``[fleet]``, or from neither."""
    for node in nodes:
        given = [column for column in NUMBERS if getattr(node, column) is not None]
        if planned and given:
            raise ConfigError(
                f"nodes.csv: node {node.name} has a {given[0]}, but [fleet] plans the ratios "
                f"from the devices. Remove the column {given[0]}, or [fleet]."
            )
        if not planned and node.ratio is None:
            raise ConfigError(
                f"nodes.csv: node {node.name} has no ratio: the column 'ratio' is missing or empty "
                "there. Give one in (0, 1], or let the server plan them: [fleet] with devices = "
                "'nodes' in the configuration."
            )


def node_values(config: RunConfig, node: Node, num_clients: int) -> str:
    """``node.toml``, without comments: the node's part of the run's data, and the run's model."""
    data = config.data.model_dump(exclude_unset=True, exclude_none=True)
    # The server sends the weights.
    model = config.model.model_dump(exclude_unset=True, exclude_none=True, exclude={"weights"})
    task = config.task.model_dump(exclude_unset=True, exclude_none=True)
    if config.data.split_file is not None:
        data["split_file"] = SPLIT_FILE
    values = {
        "name": node.name,
        "client": node.client,
        "num_clients": num_clients,
        **({} if config.fleet is None else {"profile": PROFILE}),
        "data": {**data, "name": config.data.name, "seed": config.seed},
        "model": {"name": config.model.name, **model},
        **({"task": task} if task else {}),
    }
    return tomli_w.dumps(values)
