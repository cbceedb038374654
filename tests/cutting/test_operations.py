"""One table of operations, and exactly the names that each of its two users knows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedplt.cutting.operations import (
    Kind,
    autograd_names,
    function_names,
    is_autograd_node,
    module_kinds,
)

AUTOGRAD = {
    Kind.ELEMENTWISE: {
        "Relu", "LeakyRelu", "Gelu", "Silu", "Tanh", "Sigmoid", "Elu", "Hardtanh", "Hardswish",
        "Clone", "NativeDropout",
    },
    Kind.POOLING: {"MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool"},
    Kind.RESHAPE: {"View", "UnsafeView", "ReshapeAlias"},
    Kind.TRANSPOSE: {"Transpose", "Permute"},
    Kind.BINARY: set(),
}  # fmt: skip
FUNCTIONS = {
    Kind.ELEMENTWISE: {
        "relu", "relu_", "relu6", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid",
        "softplus", "hardtanh", "hardswish", "dropout", "dropout2d", "contiguous", "clone",
        "detach", "float",
    },
    Kind.POOLING: {
        "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d",
        "boolean_dispatch",
    },
    Kind.RESHAPE: {"flatten", "view", "reshape"},
    Kind.TRANSPOSE: set(),
    Kind.BINARY: {
        "add", "iadd", "add_", "sub", "isub", "sub_", "mul", "imul", "mul_", "truediv", "div",
    },
}  # fmt: skip
MODULES = {
    Kind.ELEMENTWISE: {
        nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh,
        nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Dropout, nn.Dropout1d, nn.Dropout2d,
    },
    Kind.POOLING: {
        nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
        nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    },
    Kind.RESHAPE: {nn.Flatten},
    Kind.TRANSPOSE: set(),
    Kind.BINARY: set(),
}  # fmt: skip


@pytest.mark.parametrize("kind", Kind)
def test_the_names_of_every_kind(kind):
    for found, wanted in (
        (autograd_names(kind), AUTOGRAD[kind]),
        (function_names(kind), FUNCTIONS[kind]),
        (module_kinds(kind), MODULES[kind]),
    ):
        assert set(found) == wanted
        assert len(found) == len(wanted)  # nothing is listed twice


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (torch.relu, Kind.ELEMENTWISE),
        (F.relu6, Kind.ELEMENTWISE),
        (lambda x: F.max_pool1d(x, 2), None),  # its nodes are of max_pool2d, squeezed
        (lambda x: F.max_pool2d(x, 2), Kind.POOLING),
        (lambda x: F.avg_pool2d(x, 2), Kind.POOLING),
        (lambda x: F.adaptive_max_pool2d(x, 1), Kind.POOLING),
        (lambda x: x.view(2, -1), Kind.RESHAPE),
        (lambda x: x.transpose(1, 2), Kind.TRANSPOSE),
        (lambda x: x.softmax(-1), None),
        (lambda x: x.flip(1), None),
        (lambda x: x + x, None),
    ],
)
def test_autograd_nodes_by_kind(operation, kind):
    x = torch.ones(2, 3, 4, requires_grad=True)
    node = operation(x * 1).grad_fn
    assert [known for known in Kind if is_autograd_node(node, known)] == ([kind] if kind else [])
