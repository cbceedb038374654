"""Operations that keep channels apart, under all the names they have.

:mod:`fedplt.cutting.channels` follows the autograd graph (``ReluBackward0``), and
:mod:`fedplt.cutting.coupling` a ``torch.fx`` graph (the function ``relu``, the module ``nn.ReLU``).
Operations that are not listed may mix channels. To add one for both, add a line to ``OPERATIONS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import nn
from torch.autograd.function import BackwardCFunction

from fedplt.torch_internals import BatchNormBase, InstanceNormBase

Kinds = tuple[type[nn.Module], ...]

CONVOLUTIONS: Kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED_CONVOLUTIONS: Kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CHANNELED: Kinds = (nn.Linear, *CONVOLUTIONS)
"""Their outputs are channels on a known axis: the last one of a Linear, axis 1 of a convolution."""
FEEDING: Kinds = (*CHANNELED, *TRANSPOSED_CONVOLUTIONS)
"""A normalization layer after one of these joins its layer."""

PER_CHANNEL_NORMALIZATION: Kinds = (BatchNormBase, InstanceNormBase)
"""Every channel is normalized alone."""
NORMALIZATION: Kinds = (*PER_CHANNEL_NORMALIZATION, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Kind(Enum):
    ELEMENTWISE = "one number in, one number out"
    POOLING = "one number out of several positions of a channel"
    RESHAPE = "the same numbers in the same order, in another shape"
    TRANSPOSE = "the same numbers with their axes in another order"
    BINARY = "elementwise, of two tensors"


@dataclass(frozen=True)
class Operation:
    kind: Kind
    autograd: tuple[str, ...] = ()
    """Names of autograd nodes, without ``Backward0`` and the number of dimensions."""
    functions: tuple[str, ...] = ()
    """Names of functions and of tensor methods."""
    modules: Kinds = ()


OPERATIONS: tuple[Operation, ...] = (
    Operation(Kind.ELEMENTWISE, ("Relu",), ("relu", "relu_"), (nn.ReLU,)),
    Operation(Kind.ELEMENTWISE, ("LeakyRelu",), ("leaky_relu",), (nn.LeakyReLU,)),
    Operation(Kind.ELEMENTWISE, ("Hardtanh",), ("hardtanh", "relu6"), (nn.Hardtanh, nn.ReLU6)),
    Operation(Kind.ELEMENTWISE, ("Hardswish",), ("hardswish",), (nn.Hardswish,)),
    Operation(Kind.ELEMENTWISE, ("Elu",), ("elu",), (nn.ELU,)),
    Operation(Kind.ELEMENTWISE, ("Gelu",), ("gelu",), (nn.GELU,)),
    Operation(Kind.ELEMENTWISE, ("Silu",), ("silu",), (nn.SiLU,)),
    Operation(Kind.ELEMENTWISE, ("Tanh",), ("tanh",), (nn.Tanh,)),
    Operation(Kind.ELEMENTWISE, ("Sigmoid",), ("sigmoid",), (nn.Sigmoid,)),
    Operation(Kind.ELEMENTWISE, (), ("softplus",), (nn.Softplus,)),
    Operation(Kind.ELEMENTWISE, ("NativeDropout",), ("dropout",), (nn.Dropout,)),
    Operation(Kind.ELEMENTWISE, (), ("dropout2d",), (nn.Dropout1d, nn.Dropout2d)),
    Operation(Kind.ELEMENTWISE, ("Clone",), ("clone", "contiguous")),
    Operation(Kind.ELEMENTWISE, (), ("detach", "float"), (nn.Identity,)),
    Operation(Kind.POOLING, ("MaxPool",), ("max_pool2d",), (nn.MaxPool1d, nn.MaxPool2d)),
    Operation(Kind.POOLING, ("AvgPool",), ("avg_pool2d",), (nn.AvgPool1d, nn.AvgPool2d)),
    Operation(
        Kind.POOLING,
        ("AdaptiveAvgPool",),
        ("adaptive_avg_pool2d",),
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    ),
    Operation(
        Kind.POOLING,
        ("AdaptiveMaxPool",),
        ("adaptive_max_pool2d",),
        (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
    ),
    # What F.max_pool2d is called where torch did not name the function that it dispatches by.
    Operation(Kind.POOLING, functions=("boolean_dispatch",)),
    Operation(
        Kind.RESHAPE,
        ("View", "UnsafeView", "ReshapeAlias"),
        ("flatten", "view", "reshape"),
        (nn.Flatten,),
    ),
    Operation(Kind.TRANSPOSE, ("Transpose", "Permute")),
    Operation(Kind.BINARY, functions=("add", "add_", "iadd")),
    Operation(Kind.BINARY, functions=("sub", "sub_", "isub")),
    Operation(Kind.BINARY, functions=("mul", "mul_", "imul")),
    Operation(Kind.BINARY, functions=("div", "truediv")),
)


def autograd_names(*kinds: Kind) -> tuple[str, ...]:
    return tuple(name for o in OPERATIONS if o.kind in kinds for name in o.autograd)


def function_names(kind: Kind) -> frozenset[str]:
    return frozenset(name for o in OPERATIONS if o.kind is kind for name in o.functions)


def module_kinds(kind: Kind) -> Kinds:
    return tuple(module for o in OPERATIONS if o.kind is kind for module in o.modules)


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
        for known in autograd_names(*kinds)
    )
