"""Matrix products of Linear layers: oneDNN's where it is faster than BLAS, by a fixed rule.

oneDNN adds bias and ReLU while it writes the result. On some processors it uses vector instructions
that torch's BLAS (MKL) does not use. The rule looks at types, shapes and layouts, never at timings:
every process runs the same products, and gets the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedplt.torch_internals import is_batched, linear, onednn_linear

GENERATION = 3
"""Increased when a change of any kernel changes last bits. Runs of different generations differ
like runs on different processors: reports and comparisons never pair them."""
_MIN_PRODUCTS = 2**22
"""With fewer multiplications, oneDNN's call overhead is larger than its gain."""
_MIN_INNER = 32
"""With a smaller inner dimension, oneDNN is slower than BLAS."""


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
    """``target -= rate * a @ b`` in one pass of BLAS: oneDNN cannot add to a matrix."""
    target.addmm_(a, b, alpha=-rate)


def _is_fast(a: Tensor, b: Tensor, num_columns: int) -> bool:
    """Whether oneDNN computes the product ``a @ b`` (or with ``b`` transposed)."""
    return (
        a.numel() * num_columns >= _MIN_PRODUCTS
        and a.dtype is torch.float32
        and a.is_cpu
        and b.is_contiguous()  # else oneDNN may run code that is hundreds of times slower
        and not is_batched(a)
        and not torch.is_grad_enabled()  # oneDNN's call has no derivative
    )
