"""Context managers and masks for what a recipe changes in the model during local training."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.client.slices import TrainableSlices
from fedplt.data import Samples
from fedplt.kernels import has_running_statistics, modules_with_running_statistics
from fedplt.planning import Assignment, LocalRecipe


@contextmanager
def scaled(model: nn.Module, assignment: Assignment, recipe: LocalRecipe) -> Iterator[None]:
    """Inside the block, the sub-model's activations are divided by its rate (in training mode).

    Its layers sum over fewer units than those of the whole model: dividing keeps the sums as large.
    """
    handles = []
    divide = functools.partial(_divide, assignment.rate)
    divide_inputs = functools.partial(_divide_inputs, assignment.rate)
    try:
        for name in assignment.scaled_modules(recipe.scaler):
            module = model.get_submodule(name)
            if recipe.scaler == "inputs":
                handles.append(module.register_forward_pre_hook(divide_inputs))
            else:
                handles.append(module.register_forward_hook(divide))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _divide(rate: float, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output / rate if module.training else output


def _divide_inputs(rate: float, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0] / rate, *inputs[1:]) if module.training else inputs


@contextmanager
def static_norms(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Inside the block, normalization layers use batch statistics; running ones do not change."""
    changed: list[tuple[Any, Any]] = []
    try:
        for module in modules_with_running_statistics(model) if wanted else []:
            changed.append((module, module.momentum))
            module.momentum = 0.0
        yield
    finally:
        for module, momentum in changed:
            module.momentum = momentum


@contextmanager
def frozen_norms(model: nn.Module, part: TrainableSlices, recipe: LocalRecipe) -> Iterator[None]:
    """Inside the block, normalization layers without a trained row stay in evaluation mode."""
    wanted = recipe.evaluate_frozen_norms and not recipe.local_norms
    still: list[tuple[Any, bool]] = []
    try:
        for module in model.modules() if wanted else ():
            if has_running_statistics(module) and not part.trains_some_of(module):
                still.append((module, module.training))
                module.eval()
                module.train = functools.partial(_stay, module)  # type: ignore[method-assign]
        yield
    finally:
        for module, before in still:
            del module.train
            module.train(before)


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    return module


def absent_classes(samples: Samples, examples: range, outputs: Tensor) -> Tensor:
    """Mask of the outputs whose class does not occur in these examples, (classes,)."""
    labels = torch.from_numpy(samples.labels()[examples.start : examples.stop])
    absent = torch.ones(outputs.shape[-1], dtype=torch.bool)
    absent[labels] = False
    return absent.to(outputs.device)
