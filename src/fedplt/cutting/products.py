"""Matrix products outside of modules of a known kind: attention, recurrent layers, a user's own."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from fedplt.cutting.operations import autograd_name
from fedplt.cutting.trace import Trace, is_parameter
from fedplt.planning import Product

RECOMPUTING = 2.5
"""Fused attention makes two products forward and five backward."""


def products(trace: Trace) -> tuple[Product, ...]:
    """All such products, each with the modules and parameters that its operands come from."""
    intercepted = _intercepted_in_attention(trace)
    result = []
    for node in trace.nodes:
        counted = None if node in trace.inside else _count(node)
        if counted is None:
            continue
        flops, indices, joint = counted
        operands = [node.next_functions[index][0] for index in indices]
        sources = tuple(tuple(sorted(trace.sources(operand))) for operand in operands)
        weight = _transposed_parameter(operands[-1])
        sliced = None
        if weight is not None and id(weight) in intercepted:
            sliced = trace.parameters[id(weight)]
        result.append(Product(flops / trace.batch, sources, sliced, joint))
    return tuple(result)


def _count(node: Any) -> tuple[float, tuple[int, ...], float] | None:
    """FLOPs of a product, the positions of its operands, and the cost of all gradients if joint."""
    kind = autograd_name(node).partition("Backward")[0]
    if kind in ("Mm", "Addmm"):
        last = node._saved_mat2_sym_sizes  # (inner, columns)
        return (
            2.0 * math.prod(_output_shape(node)) * last[0],
            ((0, 1) if kind == "Mm" else (1, 2)),
            0.0,
        )
    if kind in ("Bmm", "Baddbmm"):
        names = ("self", "mat2") if kind == "Bmm" else ("batch1", "batch2")
        left, right = (getattr(node, f"_saved_{name}") for name in names)
        inner = left.shape[2] if left is not None else right.shape[1]
        return (
            2.0 * math.prod(_output_shape(node)) * inner,
            ((0, 1) if kind == "Bmm" else (1, 2)),
            0.0,
        )
    if kind.startswith("ScaledDotProduct"):
        query, key, value = (getattr(node, f"_saved_{name}") for name in ("query", "key", "value"))
        pairs = math.prod(query.shape[:-1]) * key.shape[-2]
        return 2.0 * pairs * (query.shape[-1] + value.shape[-1]), (0, 1, 2), RECOMPUTING
    if kind == "Convolution" and node._saved_weight is not None:
        x, weight = node._saved_input, node._saved_weight
        pixels = x.shape if node._saved_transposed else _output_shape(node)
        return 2.0 * weight.numel() * pixels[0] * math.prod(pixels[2:]), (0, 1), 0.0
    if kind == "MkldnnRnnLayer":
        steps, size = node._saved_input.shape[:2]
        weights = node._saved_weight0.numel() + node._saved_weight1.numel()
        return 2.0 * steps * size * weights, tuple(range(len(node.next_functions))), 2.0
    return None


def _output_shape(node: Any) -> tuple[int, ...]:
    """Shape of the output of the operation that made this node."""
    return tuple(node._input_metadata[0].shape)


def _transposed_parameter(node: Any) -> Any:
    """The parameter that a node is, or is the transpose of."""
    while autograd_name(node).startswith("TBackward"):
        node = node.next_functions[0][0]
    return node.variable if is_parameter(node) else None


def _intercepted_in_attention(trace: Trace) -> set[int]:
    """Weights whose products :mod:`fedplt.kernels.attention` computes."""
    return {
        id(weight)
        for module in trace.modules.values()
        if isinstance(module, nn.MultiheadAttention)
        if type(module).forward is nn.MultiheadAttention.forward
        for weight in (module.in_proj_weight, module.out_proj.weight)
    }
