"""Matrix products of Linear layers: oneDNN's where it is faster than BLAS, by a fixed rule.

oneDNN adds bias and ReLU while it writes the result, and uses vector instructions of processors
for which torch's BLAS (MKL) does not. The rule looks at types, shapes and layouts, never at a
timing: the same products run in every process, and give the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedplt.torch_internals import is_batched, linear, onednn_linear

GENERATION = 3
"""Raised when a change of any kernel changes last bits. Runs of other generations differ as runs on
another kind of processor do, so that reports and comparisons never pair them."""
_MIN_PRODUCTS = 2**22
"""Multiplications below which the call takes longer than BLAS saves."""
_MIN_INNER = 32
"""Summands below which the result is written more slowly than BLAS computes it."""


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    """``x @ weight.T + bias``, then ReLU if wanted."""
    if onednn_linear is not None and _is_fast(x, weight, weight.size(0)):
        y: Tensor = onednn_linear(x, weight, bias, "relu" if relu else "none", [], "")
        return y
    y = linear(x, weight, bias)
    return y.relu_() if relu else y


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b``."""
    if onednn_linear is not None and b.size(0) >= _MIN_INNER and _is_fast(a, b, b.size(1)):
        c: Tensor = onednn_linear(a, b.T, None, "none", [], "")
        return c
    return a @ b


def subtract_product(target: Tensor, a: Tensor, b: Tensor, rate: float) -> None:
    """``target -= rate * a @ b``, in one pass: oneDNN cannot add to a matrix, BLAS can."""
    target.addmm_(a, b, alpha=-rate)


def _is_fast(a: Tensor, b: Tensor, num_columns: int) -> bool:
    """Whether oneDNN computes the product, whose second matrix is ``b`` or its transpose."""
    return (
        a.numel() * num_columns >= _MIN_PRODUCTS
        and a.dtype is torch.float32
        and a.is_cpu
        and b.is_contiguous()  # else oneDNN may run code that is hundreds of times slower
        and not is_batched(a)
        and not torch.is_grad_enabled()  # oneDNN's call has no derivative
    )
