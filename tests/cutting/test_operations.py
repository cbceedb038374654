"""One table of operations, and exactly the names that each of its two users knows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedplt.cutting import operations
from fedplt.cutting.operations import is_autograd_node

KINDS = {name: kind for name, kind in vars(operations).items() if isinstance(kind, operations.Kind)}
AUTOGRAD = {
    "ELEMENTWISE": {
        "Relu", "LeakyRelu", "Gelu", "Silu", "Tanh", "Sigmoid", "Elu", "Hardtanh", "Hardswish",
        "Clone", "NativeDropout",
    },
    "POOLING": {"MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool"},
    "RESHAPE": {"View", "UnsafeView", "ReshapeAlias"},
    "TRANSPOSE": {"Transpose", "Permute"},
    "BINARY": set(),
}  # fmt: skip
FUNCTIONS = {
    "ELEMENTWISE": {
        "relu", "relu_", "relu6", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid",
        "softplus", "hardtanh", "hardswish", "dropout", "dropout2d", "contiguous", "clone",
        "detach", "float",
    },
    "POOLING": {
        "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d",
        "boolean_dispatch",
    },
    "RESHAPE": {"flatten", "view", "reshape"},
    "TRANSPOSE": set(),
    "BINARY": {
        "add", "iadd", "add_", "sub", "isub", "sub_", "mul", "imul", "mul_", "truediv", "div",
    },
}  # fmt: skip
MODULES = {
    "ELEMENTWISE": {
        nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh,
        nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Dropout, nn.Dropout1d, nn.Dropout2d,
    },
    "POOLING": {
        nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
        nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    },
    "RESHAPE": {nn.Flatten},
    "TRANSPOSE": set(),
    "BINARY": set(),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_of_every_kind(kind):
    for found, wanted in (
        (KINDS[kind].autograd, AUTOGRAD[kind]),
        (KINDS[kind].functions, FUNCTIONS[kind]),
        (KINDS[kind].modules, MODULES[kind]),
    ):
        assert set(found) == wanted
        assert len(found) == len(wanted)  # nothing is listed twice


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (torch.relu, "ELEMENTWISE"),
        (F.relu6, "ELEMENTWISE"),
        (lambda x: F.max_pool1d(x, 2), None),  # its nodes are of max_pool2d, squeezed
        (lambda x: F.max_pool2d(x, 2), "POOLING"),
        (lambda x: F.avg_pool2d(x, 2), "POOLING"),
        (lambda x: F.adaptive_max_pool2d(x, 1), "POOLING"),
        (lambda x: x.view(2, -1), "RESHAPE"),
        (lambda x: x.transpose(1, 2), "TRANSPOSE"),
        (lambda x: x.softmax(-1), None),
        (lambda x: x.flip(1), None),
        (lambda x: x + x, None),
    ],
)
def test_autograd_nodes_by_kind(operation, kind):
    x = torch.ones(2, 3, 4, requires_grad=True)
    node = operation(x * 1).grad_fn
    found = [name for name, known in KINDS.items() if is_autograd_node(node, known)]
    assert found == ([kind] if kind else [])
