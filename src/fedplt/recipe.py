"""What methods change about local training and aggregation besides who trains what."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedplt.data.samples import Samples
from fedplt.submodel import SubmodelAssignment

Normaliser = Literal["contributors", "participants"]


@dataclass(frozen=True)
class LocalRecipe:
    """The little that methods differ in, as data."""

    normaliser: Normaliser = "contributors"
    """What a sum of updates is divided by: the weight of those who trained the coordinate, or of
    all who took part (who did not train it then vote for the old value)."""
    local_norms: bool = False
    """Norms never leave the clients (FedBN)."""
    static_norm: bool = False
    """Running statistics do not move in training; they are gathered before an evaluation."""
    masked_loss: bool = False
    """Outputs of classes that the client has no example of are set to 0 before the loss."""
    scaler: Literal["none", "outputs", "inputs"] = "none"
    """Divide by the width rate in training: what hidden layers give, or what layers take in."""
    evaluate_frozen_norms: bool = False
    """Norms that a client trains nothing of are in evaluation mode."""


USUAL = LocalRecipe()


@contextmanager
def scaled(model: nn.Module, assignment: SubmodelAssignment, recipe: LocalRecipe) -> Iterator[None]:
    """Inside the block, the sub-model's activations are divided by its rate (in training mode).

    Its layers sum over fewer units than the whole model's: this keeps the sums as large.
    """
    handles = []
    try:
        for units in assignment.spaces.tensors if recipe.scaler != "none" else ():
            name, _, key = units.name.rpartition(".")
            module = model.get_submodule(name)
            if key != "weight" or isinstance(module, nn.LayerNorm) or module_is_norm(module):
                continue
            if recipe.scaler == "outputs" and units.rows is not None:
                handles.append(
                    module.register_forward_hook(functools.partial(_divide, assignment.rate))
                )
            if recipe.scaler == "inputs" and units.columns is not None:
                handles.append(
                    module.register_forward_pre_hook(functools.partial(_enlarge, assignment.rate))
                )
        yield
    finally:
        for handle in handles:
            handle.remove()


def _divide(rate: float, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output / rate if module.training else output


def _enlarge(rate: float, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0] / rate, *inputs[1:]) if module.training else inputs


def module_is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return not isinstance(weight, Tensor) or weight.ndim < 2


@contextmanager
def static_norms(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Inside the block, batch statistics are used and running statistics stay as they are."""
    changed: list[tuple[Any, Any]] = []
    try:
        modules: list[Any] = list(model.modules()) if wanted else []
        for module in modules:
            if getattr(module, "running_mean", None) is not None:
                changed.append((module, module.momentum))
                module.momentum = 0.0
        yield
    finally:
        for module, momentum in changed:
            module.momentum = momentum


def absent_classes(samples: Samples, examples: range, outputs: Tensor) -> Tensor:
    """Which outputs stand for classes that these examples do not have, (classes,)."""
    labels = torch.from_numpy(samples.labels()[examples.start : examples.stop])
    absent = torch.ones(outputs.shape[-1], dtype=torch.bool)
    absent[labels] = False
    return absent.to(outputs.device)
