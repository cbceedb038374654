"""Load the data that the configuration names, and split it among the clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedplt.configuration import RunConfig
from fedplt.data import (
    CATALOG,
    Progress,
    Samples,
    Split,
    TrainingData,
    load_data_set,
    split_dirichlet,
    split_given,
    split_iid,
    split_shards,
)
from fedplt.errors import ConfigError, DataError, FedpltError, did_you_mean
from fedplt.imports import import_object, returns


def load_data(config: RunConfig, progress: Progress | None = None) -> TrainingData:
    """A built-in data set, or the result of the user's function."""
    name = config.data.name
    if name in CATALOG:
        return load_data_set(name, scaling=config.data.scaling, progress=progress)
    if ":" not in name:
        raise ConfigError(
            f"there is no data set {name!r}. {did_you_mean(name, CATALOG)} "
            "Your own is named by import path: 'my_package.data:load'.",
            key="data.name",
        )
    load = import_object(name, "data.name")
    if not returns(load, TrainingData):
        raise ConfigError(
            f"{name!r} is from an installed package and does not say that it returns "
            "TrainingData (def ...() -> fedplt.TrainingData), so it is not called. Call it in a "
            "function of your own, and name that.",
            key="data.name",
        )
    try:
        data = load()
    except FedpltError:
        raise
    except Exception as error:  # the user's function may raise anything
        raise ConfigError(
            f"{name!r} failed: {type(error).__name__}: {error}", key="data.name"
        ) from error
    if not isinstance(data, TrainingData):
        raise ConfigError(
            f"{name!r} gave a {type(data).__name__}, not a TrainingData.", key="data.name"
        )
    return data


def split_data(config: RunConfig, train: Samples) -> Split:
    """The examples of each client."""
    number, settings, seed = config.clients.num_clients, config.data, config.seed
    try:
        if settings.split == "iid":
            return split_iid(len(train), number, seed=seed)
        if settings.split == "shards":
            return split_shards(
                train.labels(), number, shards_per_client=settings.shards_per_client, seed=seed
            )
        if settings.split == "given":
            return split_given(_given(settings.split_file or ""), len(train))
        return split_dirichlet(
            train.labels(), number,
            alpha=settings.alpha, min_examples=settings.min_examples, seed=seed,
        )  # fmt: skip
    except DataError as error:
        raise ConfigError(f"clients.num_clients, data.split: {error}") from error


def _given(file: str) -> Any:
    path = Path(file)
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not an ordinary file")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", key="data.split_file") from error
