"""Normalization layers with running statistics: which have them, and how they are trained.

Only the statistics of the trained channels change, or of all channels where they stay on the
client. Other normalization layers have no kernel: their few gradients are computed whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, instance_norm

from fedplt.kernels.trained_rows import Statistics
from fedplt.torch_internals import BatchNormBase, InstanceNormBase

RUNNING_STATISTICS = ("running_mean", "running_var")
"""The buffers of a normalization layer that training changes."""


def has_running_statistics(module: nn.Module) -> bool:
    """Whether training mode changes the module's statistics, even if nothing of it is trained."""
    return all(getattr(module, key, None) is not None for key in RUNNING_STATISTICS)


def keeps_statistics(module: nn.Module) -> bool:
    """Whether it is torch's own normalization layer: untrained statistics keep their bits."""
    return isinstance(module, (BatchNormBase, InstanceNormBase)) and has_running_statistics(module)


def modules_with_running_statistics(model: nn.Module) -> list[Any]:
    """All modules with running statistics, in the order of ``model.modules()``."""
    return [module for module in model.modules() if has_running_statistics(module)]


def sliced_batch_norm(
    input: Tensor,
    statistics: Statistics,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch statistics while training; those of untrained channels do not change."""
    mean, var = statistics.mean, statistics.var
    if not training or input.numel() == input.shape[1]:
        # One value per channel has no variance: a last batch of one example.
        return torch.batch_norm(input, weight, bias, mean, var, False, 0.0, eps, False)
    moved_mean, moved_var = mean.clone(), var.clone()
    try:
        return batch_norm(input, moved_mean, moved_var, weight, bias, True, momentum, eps)
    finally:  # a checkpoint that recomputes raises once it has all saved tensors
        _copy_trained(statistics, moved_mean, moved_var)


def sliced_instance_norm(
    input: Tensor,
    statistics: Statistics,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each example has its own statistics while training."""
    mean, var = statistics.mean, statistics.var
    if not use_input_stats:
        return instance_norm(input, mean, var, weight, bias, False, 0.0, eps)
    moved_mean, moved_var = mean.clone(), var.clone()
    try:
        return instance_norm(input, moved_mean, moved_var, weight, bias, True, momentum, eps)
    finally:
        _copy_trained(statistics, moved_mean, moved_var)


def _copy_trained(statistics: Statistics, mean: Tensor, var: Tensor) -> None:
    with torch.no_grad():
        for start, stop in statistics.rows:
            statistics.mean[start:stop] = mean[start:stop]
            statistics.var[start:stop] = var[start:stop]
