# mypy: implicit-reexport
"""Built-in models by name, and any other by import path.

===========  ===================================================================
``fcn``      the paper's fully connected network (784 or 3072 inputs)
``resnet8``  the paper's ResNet-8: stem, three blocks, classifier
``cnn``      two convolutions and two linear layers, for quick trials
``vit``      a small vision transformer for 32x32 images
``text``     a small text transformer that predicts every next character
===========  ===================================================================
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fedplt.errors import ConfigError, did_you_mean
from fedplt.imports import import_object, returns
from fedplt.models.calls import call_model, copy_model, model_mode
from fedplt.models.networks import cnn, fcn, resnet8
from fedplt.models.transformers import TextTransformer, VisionTransformer
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
        resnet8,
        {"block1": "block1.*", "block2": "block2.*", "block3": "block3.*"},
        example=lambda: torch.zeros(2, 3, 32, 32),
    ),
    "vit": ModelSpec(VisionTransformer, example=lambda: torch.zeros(2, 3, 32, 32)),
    "text": ModelSpec(TextTransformer, example=lambda: torch.zeros(2, 64, dtype=torch.long)),
}


def model_spec(name: str) -> ModelSpec:
    """The spec of a built-in model, or of ``package.module:function``."""
    if name in MODELS:
        return MODELS[name]
    if ":" not in name:
        raise ConfigError(
            f"there is no built-in model {name!r}. {did_you_mean(name, MODELS)} "
            "Your own is named by import path: 'my_package.models:build'.",
            key="model.name",
        )
    build = import_object(name, "model.name")
    if not returns(build, nn.Module):
        raise ConfigError(
            f"{name!r} is from an installed package and does not say that it builds a "
            "torch module (class ...(nn.Module), or def ...() -> nn.Module), so it is not called. "
            "Call it in a function of your own, and name that.",
            key="model.name",
        )
    return ModelSpec(build)


def _parameters(build: Callable[..., object]) -> str:
    try:
        return ", ".join(inspect.signature(build).parameters) or "no options"
    except (TypeError, ValueError):  # some built-ins have no signature
        return "see its documentation"


def build_model(name: str, options: Mapping[str, Any], seed: int) -> nn.Module:
    """Build a model whose initial weights depend only on the seed."""
    build = model_spec(name).build
    if isinstance(build, nn.Module):
        raise ConfigError(
            f"{name!r} is a model; name a function that builds one, so that its "
            "initial weights follow from the seed.",
            key="model.name",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "model"))
        try:
            model = build(**options)
        except ConfigError:
            raise
        except Exception as error:  # the user's function may raise anything
            raise ConfigError(
                f"{name!r} was called with {dict(options)} "
                f"({type(error).__name__}: {error}). It takes: {_parameters(build)}.",
                key="model.options",
            ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{name!r} gave a {type(model).__name__}, not a torch module", key="model.name"
        )
    return model
