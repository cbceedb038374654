"""The model and the data that a configuration names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

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
from fedplt.imports import import_object, returns, search_also
from fedplt.kernels import named_tensors
from fedplt.models import build_model
from fedplt.planning import Layers


def find_code(config: RunConfig) -> None:
    """Make the modules in the configuration's ``code`` folder importable."""
    if config.code is not None:
        search_also(config.code)


def model_from_config(config: RunConfig) -> nn.Module:
    find_code(config)
    model = build_model(config.model.name, config.model.options, config.seed)
    if config.model.weights is not None:
        load_weights(model, Path(config.model.weights), "model.weights")
    return model


def all_tensors(model: nn.Module, layers: Layers, state: Tensor) -> dict[str, Tensor]:
    """All tensors of ``model.state_dict()``; those of the layers are taken from ``state``."""
    trained = named_tensors(layers, state)
    rest = {
        name: tensor.detach().contiguous().clone()
        for name, tensor in model.state_dict().items()
        if name not in trained
    }
    return {**trained, **rest}


def load_weights(model: nn.Module, path: Path, key: str) -> None:
    """Load a safetensors file into a model; every tensor must fit."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        text = f"{path} cannot be read as a safetensors file: {error}"
        raise ConfigError(text, key=key) from error
    own = model.state_dict()
    shared = {name for name in own if name not in tensors and _has_twin(own, tensors, name)}
    problems = [f"{name!r} is missing" for name in own if name not in tensors.keys() | shared]
    problems += [
        f"{name!r} is not in the model. {did_you_mean(name, own)}"
        for name in tensors
        if name not in own
    ]
    problems += [
        f"{name!r} has shape {tuple(tensor.shape)}, the model's {tuple(own[name].shape)}"
        for name, tensor in tensors.items()
        if name in own and own[name].shape != tensor.shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(f"{path} does not fit the model: {problems[0]}{more}.", key=key)
    model.load_state_dict(tensors, strict=False)


def _has_twin(own: dict[str, Tensor], tensors: dict[str, Tensor], name: str) -> bool:
    """Whether the file has this tensor under a tied name: safetensors stores tied tensors once."""
    return any(own[other].data_ptr() == own[name].data_ptr() for other in tensors if other in own)


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
    data = call_loader(load, name, "data.name")
    if not isinstance(data, TrainingData):
        problem = f"{name!r} gave a {type(data).__name__}, not a TrainingData."
        raise ConfigError(problem, key="data.name")
    return data


def call_loader(load: Any, name: str, key: str) -> Any:
    """Call the user's function; its exceptions become a ConfigError of this key."""
    try:
        return load()
    except FedpltError:
        raise
    except Exception as error:  # the user's function may raise anything
        problem = f"{name!r} failed: {type(error).__name__}: {error}"
        raise ConfigError(problem, key=key) from error


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
