"""Normalization layers with running statistics: which have them, and how they are trained.

Only the statistics of the trained channels change, or of all channels if they stay on the client.
Other normalization layers have no kernel: their gradients are small and computed in full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, instance_norm

from fedplt.kernels.trained_rows import Planned, Statistics
from fedplt.torch_internals import BatchNormBase, InstanceNormBase

RUNNING_STATISTICS = ("running_mean", "running_var")
"""The buffers of a normalization layer that training changes."""


def has_running_statistics(module: nn.Module) -> bool:
    """Whether training mode changes the module's statistics, even if nothing of it is trained."""
    return all(getattr(module, key, None) is not None for key in RUNNING_STATISTICS)


def keeps_statistics(module: nn.Module) -> bool:
    """Whether it is torch's own normalization layer, so untrained statistics can be kept."""
    return isinstance(module, (BatchNormBase, InstanceNormBase)) and has_running_statistics(module)


def modules_with_running_statistics(model: nn.Module) -> list[Any]:
    """All modules with running statistics, in the order of ``model.modules()``."""
    return [module for module in model.modules() if has_running_statistics(module)]


def planned_batch_norm(
    planned: Planned,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """``F.batch_norm``: in training mode, the statistics of untrained channels do not change."""
    statistics = planned.statistics_of(running_mean, running_var)
    if statistics is None:
        return NotImplemented
    if planned.has_hooks:
        weight, bias = planned.carrier_of(weight), planned.carrier_of(bias)
    mean, var = statistics.mean, statistics.var
    if not training or input.numel() == input.shape[1]:
        # One value per channel has no variance: the last batch may be a single example.
        return torch.batch_norm(input, weight, bias, mean, var, False, 0.0, eps, False)
    moved_mean, moved_var = mean.clone(), var.clone()
    try:
        return batch_norm(input, moved_mean, moved_var, weight, bias, True, momentum, eps)
    finally:  # a recomputing checkpoint raises once it has all saved tensors
        _copy_trained(statistics, moved_mean, moved_var)


def planned_instance_norm(
    planned: Planned,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """``F.instance_norm``: in training mode, each example is normalized by its own statistics."""
    statistics = planned.statistics_of(running_mean, running_var)
    if statistics is None:
        return NotImplemented
    if planned.has_hooks:
        weight, bias = planned.carrier_of(weight), planned.carrier_of(bias)
    mean, var = statistics.mean, statistics.var
    if not use_input_stats:
        return instance_norm(input, mean, var, weight, bias, False, 0.0, eps)
    moved_mean, moved_var = mean.clone(), var.clone()
    try:
        return instance_norm(input, moved_mean, moved_var, weight, bias, True, momentum, eps)
    finally:
        _copy_trained(statistics, moved_mean, moved_var)


def statistics_last(operation: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.batch_norm`` and ``torch.instance_norm`` take weight and bias before statistics."""

    def reordered(
        planned: Planned,
        input: Tensor,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        *options: Any,
        cudnn_enabled: bool = True,
        **named: Any,
    ) -> Any:
        given = (running_mean, running_var, weight, bias, *options[:3])  # the fourth is for cuDNN
        return operation(planned, input, *given, **named)

    return reordered


def _copy_trained(statistics: Statistics, mean: Tensor, var: Tensor) -> None:
    with torch.no_grad():
        for start, stop in statistics.rows:
            statistics.mean[start:stop] = mean[start:stop]
            statistics.var[start:stop] = var[start:stop]
