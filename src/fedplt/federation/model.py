"""The model that a configuration names, with initial weights by seed or from a file."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedplt.configuration import RunConfig
from fedplt.errors import ConfigError, did_you_mean
from fedplt.imports import search_also
from fedplt.kernels import named_tensors
from fedplt.models import build_model
from fedplt.planning import Layers


def find_code(config: RunConfig) -> None:
    """Look for modules that the configuration names in its folder, too."""
    if config.code is not None:
        search_also(config.code)


def model_from_config(config: RunConfig) -> nn.Module:
    model = build_model(config.model.name, config.model.options, config.seed)
    if config.model.weights is not None:
        load_weights(model, Path(config.model.weights), "model.weights")
    return model


def all_tensors(model: nn.Module, layers: Layers, state: Tensor) -> dict[str, Tensor]:
    """All tensors of ``model.state_dict()``, trained or not; those of the layers from a state."""
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
        raise ConfigError(
            f"{path} cannot be read as a safetensors file: {error}", key=key
        ) from error
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
    """Whether the tensor is tied to one that the file has, as safetensors stores such tensors."""
    return any(own[other].data_ptr() == own[name].data_ptr() for other in tensors if other in own)
