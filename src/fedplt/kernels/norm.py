"""Normalization layers with running statistics: which have them, and how they are trained.

Only the statistics of the trained channels change, or of all channels where they stay on the
client. Other normalization layers need no forward of their own: their few gradients are
computed whole.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedplt.kernels.trained_rows import TrainedRows

RUNNING_STATISTICS = ("running_mean", "running_var")
"""The buffers of a normalization layer that training moves."""


def has_running_statistics(module: nn.Module) -> bool:
    """Whether training mode changes the module's statistics, even if nothing of it is trained."""
    return getattr(module, "running_mean", None) is not None


def modules_with_running_statistics(model: nn.Module) -> list[Any]:
    """All modules with running statistics, in the order of ``model.modules()``."""
    return [module for module in model.modules() if has_running_statistics(module)]


def batch_norm(module: Any, trained: TrainedRows, input: Tensor) -> Tensor:
    """Batch statistics while training."""
    weight, bias, mean, var = module.weight, module.bias, module.running_mean, module.running_var
    use_batch = module.training or mean is None
    if input.numel() == input.shape[1] and mean is not None:
        use_batch = False  # one value per channel has no variance (a last batch of one example)
    if not (use_batch and module.training and mean is not None):
        return torch.batch_norm(input, weight, bias, mean, var, use_batch, 0.0, module.eps, False)
    trained.num_batches += 1
    # Without a momentum torch averages over all batches so far; here, over this client's batches.
    momentum = 1 / trained.num_batches if module.momentum is None else module.momentum
    moved_mean, moved_var = mean.clone(), var.clone()
    y = F.batch_norm(input, moved_mean, moved_var, weight, bias, True, momentum, module.eps)
    _keep_trained(module, trained, moved_mean, moved_var)
    return y


def instance_norm(module: Any, trained: TrainedRows, input: Tensor) -> Tensor:
    if input.ndim == module._get_no_batch_dim():  # one example without a batch
        return instance_norm(module, trained, input[None])[0]
    weight, bias, mean, var = module.weight, module.bias, module.running_mean, module.running_var
    per_example = module.training or mean is None  # each example has its own statistics
    if not (per_example and mean is not None):
        return F.instance_norm(input, mean, var, weight, bias, per_example, 0.0, module.eps)
    moved_mean, moved_var = mean.clone(), var.clone()
    y = F.instance_norm(
        input, moved_mean, moved_var, weight, bias, True, module.momentum or 0.0, module.eps
    )
    _keep_trained(module, trained, moved_mean, moved_var)
    return y


def _keep_trained(module: Any, trained: TrainedRows, mean: Tensor, var: Tensor) -> None:
    with torch.no_grad():
        for start, stop in trained.statistics:
            module.running_mean[start:stop] = mean[start:stop]
            module.running_var[start:stop] = var[start:stop]
