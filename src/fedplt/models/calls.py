"""Call a model with any inputs, in training or evaluation mode, or a copy of it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.errors import CutError


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
    """Training or evaluation mode inside the block; afterwards each module gets its own back."""
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
