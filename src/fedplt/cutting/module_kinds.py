"""Groups of torch's module classes that several files of this package use."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

Kinds = tuple[type[nn.Module], ...]

CONVOLUTIONS: Kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED_CONVOLUTIONS: Kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CHANNELED: Kinds = (nn.Linear, *CONVOLUTIONS)
"""Their outputs are channels on a known axis: the last one of a Linear, axis 1 of a convolution."""
FEEDING: Kinds = (*CHANNELED, *TRANSPOSED_CONVOLUTIONS)
"""A normalization layer after one of these joins its layer."""

PER_CHANNEL_NORMALIZATION: Kinds = (_BatchNorm, _InstanceNorm)
"""Every channel is normalized alone."""
NORMALIZATION: Kinds = (*PER_CHANNEL_NORMALIZATION, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
