"""``nn.MultiheadAttention``: its projections are products inside one function of torch.

Neither the input projection nor ``out_proj`` is called as a module, so the products themselves are
intercepted: while an attention module runs, ``F.linear`` is replaced for its weights. Where torch
splits a weight before it uses it (cross-attention), the product is torch's own, and autograd
computes the whole gradient of that weight.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedplt.kernels.linear import sliced_linear
from fedplt.kernels.plain import is_plain
from fedplt.kernels.trained_rows import TrainedRows

Caught = dict[int, tuple[Tensor, TrainedRows]]
"""``id(weight)`` -> the weight and its trained rows."""

_torch_linear = torch._C._nn.linear
_caught: Caught = {}
_lock = threading.Lock()
_running = 0


def can_catch() -> bool:
    """Whether ``F.linear`` is torch's own, or this module's: another one computes anything."""
    return F.linear is _torch_linear or F.linear is _linear


@contextmanager
def catching(caught: Caught) -> Iterator[None]:
    """Inside the block, products with these weights are computed by kernels."""
    global _running  # noqa: PLW0603 (there is one F.linear for all threads)
    with _lock:
        _caught.update(caught)
        _running += 1
        F.linear = _linear
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                F.linear = _torch_linear
                _caught.clear()


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    entry = _caught.get(id(weight))
    if entry is None or entry[0] is not weight or not is_plain(input):
        return _torch_linear(input, weight, bias)
    return sliced_linear(input, entry[1])
