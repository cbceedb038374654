"""Build a model by name or import path, call it, and copy it.

===========  ===================================================================
``fcn``      the paper's fully connected network (784 or 3072 inputs)
``resnet8``  the paper's ResNet-8: stem, three blocks, classifier
``cnn``      two convolutions and two linear layers, for quick trials
``vit``      a small vision transformer for 32x32 images
``text``     a small text transformer that predicts every next character
===========  ===================================================================
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.errors import ConfigError, CutError, did_you_mean
from fedplt.imports import import_object, returns
from fedplt.models.networks import ResNet8, TextTransformer, VisionTransformer, cnn, fcn
from fedplt.seeds import torch_seed


@dataclass(frozen=True)
class ModelSpec:
    """How to build a model, and how it is cut by default."""

    build: Callable[..., nn.Module]
    groups: Mapping[str, str] = field(default_factory=dict)
    example: Callable[[], torch.Tensor] | None = None
    """An input batch for the model with default options."""


MODELS: dict[str, ModelSpec] = {
    "fcn": ModelSpec(fcn, example=lambda: torch.zeros(2, 784)),
    "cnn": ModelSpec(cnn, example=lambda: torch.zeros(2, 1, 28, 28)),
    "resnet8": ModelSpec(
        ResNet8,
        {"block1": "block1.*", "block2": "block2.*", "block3": "block3.*"},
        example=lambda: torch.zeros(2, 3, 32, 32),
    ),
    "vit": ModelSpec(VisionTransformer, example=lambda: torch.zeros(2, 3, 32, 32)),
    "text": ModelSpec(TextTransformer, example=lambda: torch.zeros(2, 64, dtype=torch.long)),
}


def build_model(name: str, options: Mapping[str, Any], seed: int) -> nn.Module:
    """Build a model, built-in or by import path, whose initial weights depend only on the seed."""
    if name not in MODELS and ":" not in name:
        raise ConfigError(
            f"there is no built-in model {name!r}. {did_you_mean(name, MODELS)} "
            "Name a custom model by import path: 'my_package.models:build'.",
            key="model.name",
        )
    build = MODELS[name].build if name in MODELS else import_object(name, "model.name")
    problem = ""
    if name not in MODELS and not returns(build, nn.Module):
        problem = (
            "is from an installed package, and neither a subclass of nn.Module nor annotated "
            "'-> nn.Module', so it is not called. Name a function that calls it."
        )
    elif isinstance(build, nn.Module):
        problem = "is a model; name a function that builds one, for initial weights by the seed."
    if problem:
        raise ConfigError(f"{name!r} {problem}", key="model.name")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "model"))
        try:
            model = build(**options)
        except ConfigError:
            raise
        except Exception as error:  # the user's function may raise anything
            taken = "see its documentation"
            with suppress(TypeError, ValueError):  # some built-in classes have no signature
                taken = ", ".join(inspect.signature(build).parameters) or "no options"
            raise ConfigError(
                f"{name!r} was called with {dict(options)} "
                f"({type(error).__name__}: {error}). It takes: {taken}.",
                key="model.options",
            ) from error
    if not isinstance(model, nn.Module):
        problem = f"{name!r} gave a {type(model).__name__}, not a torch module"
        raise ConfigError(problem, key="model.name")
    return model


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call the model: a dictionary of inputs is passed by name, a tuple or list by position.

    ``labels`` in a dictionary are passed only to models that take them and compute their loss. A
    single input whose name the model does not take is passed by position.
    """
    if isinstance(inputs, Tensor):
        return model(inputs)
    if isinstance(inputs, Mapping):
        forward = type(model).forward
        if "labels" in inputs and not _takes(forward, "labels"):
            inputs = {name: value for name, value in inputs.items() if name != "labels"}
            if len(inputs) == 1 and not _takes(forward, next(iter(inputs))):
                return model(*inputs.values())
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


@cache
def _takes(forward: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(forward).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


@contextmanager
def model_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Training or evaluation mode inside the block; afterwards, each module's previous mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, old in modes:
            module.training = old


def copy_model(model: nn.Module) -> nn.Module:
    """A deep copy with new parameters, also of a model with computed weights.

    Modules that are pruned or have the older weight normalization have such attributes, and
    TorchScript copies parameters as computed tensors.
    """
    computed = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    with torch.no_grad():
        result = copy.deepcopy(model, dict(computed))
    if len(list(model.parameters())) != len(list(result.parameters())):
        raise CutError("a copy of this model would untie its weights.")
    for parameter, made in zip(model.parameters(), result.parameters(), strict=True):
        made.requires_grad_(parameter.requires_grad)
    return result
