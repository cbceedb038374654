"""``nodes.csv``: the nodes of a deployment, one per line; client ids are the order of the lines.

    name,ratio
    hospital-a,1.0
    phone-7,0.25

An optional column ``learning_rate`` gives a node its own. Without the column ``ratio``, the server
plans the ratios from what the nodes say about their devices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from fedplt.configuration import csv_rows, read_text
from fedplt.errors import ConfigError, did_you_mean

COLUMNS = ("name", "ratio", "learning_rate")
EXAMPLE = "name,ratio"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True)
class Node:
    """A line of ``nodes.csv``."""

    name: str
    client: int
    ratio: float | None
    learning_rate: float | None = None


def read_nodes(path: Path) -> tuple[Node, ...]:
    """The nodes in a file; errors name the line."""
    text = read_text(path, ConfigError)
    nodes: list[Node] = []
    places: dict[str, str] = {}
    for place, row in csv_rows(text, path, ConfigError, _check_columns, EXAMPLE):
        try:
            node = _node(row, len(nodes))
        except ConfigError as error:
            raise ConfigError(str(error), key=place) from error
        # Names become folders, and some file systems ignore case.
        if (taken := places.get(node.name.lower())) is not None:
            raise ConfigError(
                f"the name {node.name!r} is taken already ({taken}). Give every node its "
                "own (upper and lower case count as the same).",
                key=place,
            )
        places[node.name.lower()] = place
        nodes.append(node)
    if not nodes:
        raise ConfigError(f"{path} has no nodes: add a line below the header, such as n1,0.5.")
    return tuple(nodes)


def client_groups(nodes: tuple[Node, ...]) -> list[dict[str, Any]]:
    """``[[clients.groups]]`` of a run: consecutive nodes that are alike."""
    groups = []
    for (ratio, rate), alike in groupby(nodes, lambda node: (node.ratio, node.learning_rate)):
        group: dict[str, Any] = {"num_clients": len(list(alike)), "ratio": ratio}
        groups.append(group if rate is None else {**group, "learning_rate": rate})
    return groups


def _check_columns(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"the column {name!r} is there twice.")
        if name not in COLUMNS:
            raise ConfigError(f"there is no column {name!r}. {did_you_mean(name, COLUMNS)}")
    if "name" not in names:
        raise ConfigError(
            f"the column 'name' is missing. The first line names the columns: {EXAMPLE}."
        )


def _node(row: dict[str, str], client: int) -> Node:
    name = row.get("name", "")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a node. Use up to 63 letters, digits, '-' and '_', such "
            "as hospital-a.",
            key="name",
        )
    ratio = None
    if "ratio" in row:
        ratio = _number(row, "ratio", "a number in (0, 1], such as 0.25")
        if not 0 < ratio <= 1:
            raise ConfigError(
                f"{ratio:g} does not lie in (0, 1]. Write a half as 0.5.", key="ratio"
            )
    rate = None
    if "learning_rate" in row:
        rate = _number(row, "learning_rate", "a positive number, such as 0.01")
        if not 0 < rate < float("inf"):
            raise ConfigError(f"{rate:g} is not positive.", key="learning_rate")
    return Node(name, client, ratio, rate)


def _number(row: dict[str, str], column: str, like: str) -> float:
    try:
        return float(row.get(column, ""))
    except ValueError:
        given = repr(row[column]) if column in row else "nothing"
        raise ConfigError(f"{given} was given; write {like}.", key=column) from None
