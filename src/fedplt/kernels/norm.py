"""Normalization layers with running statistics: which have them, and how they are trained.

Only the statistics of the trained channels change, or of all channels where they stay on the
client. Other normalization layers need no forward of their own: their few gradients are
computed whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, instance_norm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedplt.kernels.trained_rows import Statistics

RUNNING_STATISTICS = ("running_mean", "running_var")
"""The buffers of a normalization layer that training moves."""


def has_running_statistics(module: nn.Module) -> bool:
    """Whether training mode changes the module's statistics, even if nothing of it is trained."""
    return all(getattr(module, key, None) is not None for key in RUNNING_STATISTICS)


def keeps_statistics(module: nn.Module) -> bool:
    """Whether it is a normalization layer of torch, whose untrained statistics keep their bits."""
    return isinstance(module, (_BatchNorm, _InstanceNorm)) and has_running_statistics(module)


def modules_with_running_statistics(model: nn.Module) -> list[Any]:
    """All modules with running statistics, in the order of ``model.modules()``."""
    return [module for module in model.modules() if has_running_statistics(module)]


def sliced_batch_norm(
    input: Tensor,
    statistics: Statistics,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Batch statistics while training; those of channels that are not trained stay as they are."""
    mean, var = statistics.mean, statistics.var
    if not training or input.numel() == input.shape[1]:
        # One value per channel has no variance: a last batch of one example.
        return torch.batch_norm(input, weight, bias, mean, var, False, 0.0, eps, False)
    moved_mean, moved_var = mean.clone(), var.clone()
    try:
        return batch_norm(input, moved_mean, moved_var, weight, bias, True, momentum, eps)
    finally:  # a checkpoint breaks off what it computes again, when all has been saved
        _keep(statistics, moved_mean, moved_var)


def sliced_instance_norm(
    input: Tensor,
    statistics: Statistics,
    weight: Tensor | None,
    bias: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Each example has its own statistics while training."""
    mean, var = statistics.mean, statistics.var
    if not use_input_stats:
        return instance_norm(input, mean, var, weight, bias, False, 0.0, eps)
    moved_mean, moved_var = mean.clone(), var.clone()
    try:
        return instance_norm(input, moved_mean, moved_var, weight, bias, True, momentum, eps)
    finally:
        _keep(statistics, moved_mean, moved_var)


def _keep(statistics: Statistics, mean: Tensor, var: Tensor) -> None:
    with torch.no_grad():
        for start, stop in statistics.rows:
            statistics.mean[start:stop] = mean[start:stop]
            statistics.var[start:stop] = var[start:stop]
