"""Operations that do not mix channels, with their names in both kinds of graph.

:mod:`fedplt.cutting.channels` follows the autograd graph (``ReluBackward0``), and
:mod:`fedplt.cutting.coupling` a ``torch.fx`` graph (the function ``relu``, the module ``nn.ReLU``).
Operations that are not listed may mix channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.autograd.function import BackwardCFunction

from fedplt.torch_internals import BatchNormBase, InstanceNormBase

Kinds = tuple[type[nn.Module], ...]

CONVOLUTIONS: Kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED_CONVOLUTIONS: Kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CHANNELED: Kinds = (nn.Linear, *CONVOLUTIONS)
"""Modules with channels on a known output axis: the last of a Linear, axis 1 of a convolution."""
FEEDING: Kinds = (*CHANNELED, *TRANSPOSED_CONVOLUTIONS)
"""A normalization layer joins the layer of the module of these kinds that feeds it."""

PER_CHANNEL_NORMALIZATION: Kinds = (BatchNormBase, InstanceNormBase)
"""Layers that normalize every channel separately."""
NORMALIZATION: Kinds = (*PER_CHANNEL_NORMALIZATION, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Kind:
    """Operations of one kind."""

    autograd: tuple[str, ...] = ()
    """Names of autograd nodes, without ``Backward0`` and the number of dimensions."""
    functions: tuple[str, ...] = ()
    """Names of functions and of tensor methods."""
    modules: Kinds = ()


ELEMENTWISE = Kind(
    ("Relu", "LeakyRelu", "Hardtanh", "Hardswish", "Elu", "Gelu", "Silu", "Tanh", "Sigmoid",
     "NativeDropout", "Clone"),
    ("relu", "relu_", "leaky_relu", "hardtanh", "relu6", "hardswish", "elu", "gelu", "silu", "tanh",
     "sigmoid", "softplus", "dropout", "dropout2d", "clone", "contiguous", "detach", "float"),
    (nn.ReLU, nn.LeakyReLU, nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh,
     nn.Sigmoid, nn.Softplus, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Identity),
)  # fmt: skip
"""Elementwise: one number in, one number out."""
POOLING = Kind(
    ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool"),
    # Torch leaves some pooling functions the name of their dispatcher, boolean_dispatch.
    ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "boolean_dispatch"),
    (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
     nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
)  # fmt: skip
"""Pooling: one number from several positions of a channel."""
RESHAPE = Kind(
    ("View", "UnsafeView", "ReshapeAlias"), ("flatten", "view", "reshape"), (nn.Flatten,)
)
"""Reshaping: the same numbers in the same order."""
TRANSPOSE = Kind(("Transpose", "Permute"))
"""Permuting: the same numbers with their axes in another order."""
BINARY = Kind(
    functions=("add", "add_", "iadd", "sub", "sub_", "isub", "mul", "mul_", "imul", "div",
               "truediv"),
)  # fmt: skip
"""Elementwise operations of two tensors."""


def autograd_name(node: Any) -> str:
    """The name of an operation in the autograd graph, such as ``ReluBackward0``.

    Empty for a custom autograd function, which may have any name and do anything.
    """
    return "" if isinstance(node, BackwardCFunction) else type(node).__name__


def is_autograd_node(node: Any, *kinds: Kind) -> bool:
    """Whether an autograd node belongs to an operation of one of these kinds.

    ``MaxPool`` stands for ``MaxPool2DWithIndicesBackward0`` and the like.
    """
    name = autograd_name(node)
    return any(
        name.startswith((f"{known}Backward", f"{known}1", f"{known}2", f"{known}3"))
        for kind in kinds
        for known in kind.autograd
    )
