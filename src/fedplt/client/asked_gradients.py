"""``torch.autograd.grad`` inside a block: the gradient of a slice comes on two ways.

Kernels give it to the slice; where torch uses the parameter itself (a normalization layer, a
gradient of a gradient), it is a part of the parameter's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import _make_grads
from torch.autograd.graph import _engine_run_backward

from fedplt.errors import GradientError
from fedplt.kernels import Slices, axis_first, is_followed


def asked_gradients(
    trained: Iterable[Slices],
    outputs: list[Any],
    inputs: list[Any],
    grad_outputs: list[Any],
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """As ``torch.autograd.grad``; inputs may be slices."""
    whole = {
        id(leaf): (slices, rows)
        for slices in trained
        for leaf, rows in zip(slices.leaves, slices.rows, strict=True)
    }
    asked = [whole[id(tensor)][0] for tensor in inputs if id(tensor) in whole]
    parameters = list({id(slices): slices.parameter for slices in asked}.values())
    wanted = [*inputs, *parameters]
    if is_grads_batched:
        with torch._C.DisableTorchFunction():
            found = torch.autograd.grad(
                outputs, wanted, grad_outputs, retain_graph, create_graph,
                allow_unused=True, is_grads_batched=True,
            )  # fmt: skip
    else:
        grad_outputs += [None] * (len(outputs) - len(grad_outputs))
        found = _engine_run_backward(
            tuple(outputs),
            _make_grads(outputs, tuple(grad_outputs), is_grads_batched=False),
            bool(create_graph if retain_graph is None else retain_graph),
            bool(create_graph),
            tuple(wanted),
            allow_unreachable=True,
            accumulate_grad=False,
        )
    result = list(found[: len(inputs)])
    of_parameter = {id(p): g for p, g in zip(parameters, found[len(inputs) :], strict=True)}
    for place, tensor in enumerate(inputs):
        if id(tensor) in whole:
            slices, (start, stop) = whole[id(tensor)]
            other = of_parameter[id(slices.parameter)]
            if other is not None:
                moved = axis_first(other, slices.axis + is_grads_batched)
                part = moved if tensor.ndim == 0 else moved[start:stop]
                result[place] = part if result[place] is None else result[place] + part
        if result[place] is None and materialize_grads:
            result[place] = torch.zeros_like(tensor)
    if any(g is None and is_followed(t) for g, t in zip(result, inputs, strict=True)):
        raise GradientError(
            "torch.autograd.grad with respect to a tensor that was used before the model asked "
            "whether it requires a gradient: this client trains nothing that it depends on. Read "
            "requires_grad before the tensor is used, or let all clients train a layer below "
            "(always)."
        )
    if not allow_unused and any(gradient is None for gradient in result):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set "
            "allow_unused=True if this is the desired behavior."
        )
    return tuple(result)
