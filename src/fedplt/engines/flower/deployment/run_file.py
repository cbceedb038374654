"""``run.toml`` and ``node.toml`` of a deployment, from a configuration and the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from fedplt.configuration import (
    ON_NODES,
    RunConfig,
    Source,
    make_absolute,
    parse_config,
    parse_toml,
    read_text,
)
from fedplt.engines.flower.deployment.nodes_file import Node, client_groups
from fedplt.engines.flower.deployment.scripts import render
from fedplt.errors import ConfigError
from fedplt.federation import FEWEST_CLIENTS

ROUND_TIMEOUT_SECONDS = 600.0
MAX_RMS = 1.0
"""Weights are of this order at most: a change of it in one round is no training."""
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
"""Where a node's device is described, if the server plans by it."""
SPLIT_FILE = "split.json"
"""The name of ``data.split_file`` in the folders of the server and the nodes."""


def run_values(path: Path | None, nodes: tuple[Node, ...]) -> tuple[dict[str, Any], RunConfig]:
    """The run's configuration with the clients of the deployment, as plain values and checked."""
    values, where = dict(DEFAULT), ""
    if path is not None:
        where = str(path)
        text = read_text(path, ConfigError)
        values = parse_toml(text, path, ConfigError)
        make_absolute(values, path.parent)
        values.pop("code", None)  # the server and the nodes have their own
        values["engine"] = {**values.get("engine", {}), "name": "flower"}
        _refuse_lost_settings(parse_config(values, Source(text, where)), path)
        if "checkpoint_every" not in values:
            values["checkpoint_every"] = 1  # a round takes long, and a server may restart
    clients: dict[str, Any] = {"num_clients": len(nodes)}
    if "fleet" in values:
        _refuse_ratios(nodes)
    else:
        _refuse_missing_ratios(nodes)
        clients["groups"] = client_groups(nodes)
    engine = {"round_timeout_seconds": ROUND_TIMEOUT_SECONDS, **values.get("engine", {})}
    values |= {
        "clients": clients,
        "server": {**_bounds(values, len(nodes)), **values.get("server", {})},
        "engine": {**engine, "name": "flower", "pin_nodes": True},
    }
    return values, parse_config(
        values, Source(file=f"{where}, with the nodes' clients" if where else "")
    )


def _bounds(values: dict[str, Any], number: int) -> dict[str, Any]:
    """What keeps one client from spoiling a round, unless the configuration says otherwise."""
    if "privacy" in values:
        return {}  # it has a clip of its own, and every round counts
    least = max(1, number // 2, FEWEST_CLIENTS if number >= FEWEST_CLIENTS else 0)
    least = min(least, values.get("sampling", {}).get("num_clients") or least)
    bounds: dict[str, Any] = {"min_clients": least, "max_rms": MAX_RMS}
    if "aggregation" not in values.get("server", {}):
        bounds |= {"aggregation": "clipped-mean", "clip": CLIP}
    return bounds


def _refuse_lost_settings(config: RunConfig, path: Path) -> None:
    if config.fleet is not None and config.fleet.devices != ON_NODES:
        raise ConfigError(
            f"{path}: a deployment takes its ratios from nodes.csv, or plans them from what its "
            "nodes say (fleet.devices = 'nodes'), not from a file of devices. Set that, or remove "
            "[fleet] and put the ratios that 'fedplt fleet' plans into nodes.csv."
        )
    for key, given in (
        ("clients.learning_rates", config.clients.learning_rates),
        ("training.augment", config.training.augment),
    ):
        if given is not None:
            raise ConfigError(
                f"{path}: {key} would be lost: the nodes of a deployment have their own data and "
                "code. Remove it; nodes.csv may have a column learning_rate."
            )
    for index, group in enumerate(config.clients.groups):
        if group.learning_rate is not None or group.layer_ratios is not None:
            key = "layer_ratios" if group.layer_ratios is not None else "learning_rate"
            raise ConfigError(
                f"{path}: clients.groups.{index}.{key} would be lost: a deployment takes its "
                "clients from nodes.csv. Remove it; nodes.csv may have a column learning_rate."
            )


def _refuse_ratios(nodes: tuple[Node, ...]) -> None:
    """With ``[fleet]`` the server plans, and nodes.csv has the names alone."""
    for node in nodes:
        for column in ("ratio", "learning_rate"):
            if getattr(node, column) is not None:
                raise ConfigError(
                    f"nodes.csv: node {node.name} has a {column}, but [fleet] plans the ratios "
                    f"from the devices. Remove the column {column}, or [fleet]."
                )


def _refuse_missing_ratios(nodes: tuple[Node, ...]) -> None:
    for node in nodes:
        if node.ratio is None:
            raise ConfigError(
                f"nodes.csv: node {node.name} has no ratio: the column 'ratio' is missing or empty "
                "there. Give one in (0, 1], or let the server plan them: [fleet] with devices = "
                "'nodes' in the configuration."
            )


def run_text(values: dict[str, Any]) -> str:
    about = (
        "# The run of this deployment. [clients] was made from nodes.csv: client 0 is its first "
        "line.\n# All keys: docs/configuration.md.\n\n"
    )
    return about + tomli_w.dumps(values)


def node_text(config: RunConfig, node: Node, num_clients: int) -> str:
    """A node's ``node.toml``: its part of the run's data, and the run's model."""
    data = config.data.model_dump(exclude_unset=True, exclude_none=True)
    # The server sends the weights.
    model = config.model.model_dump(exclude_unset=True, exclude={"weights"})
    if config.data.split_file is not None:
        data["split_file"] = SPLIT_FILE
    values = {
        "name": node.name,
        "client": node.client,
        "num_clients": num_clients,
        "profile": None if config.fleet is None else PROFILE,
        "data": {**data, "name": config.data.name, "seed": config.seed},
        "model": {"name": config.model.name, **model},
        **({"task": task} if (task := config.task.model_dump(exclude_unset=True)) else {}),
    }
    return render("node.toml", values=tomli_w.dumps(_without_none(values)))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value
