"""Records the matrix products and convolutions of a step, to repeat them and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
PRODUCTS = {
    _ATEN.mm, _ATEN.addmm, _ATEN.addmm_, torch.ops.mkldnn._linear_pointwise,
    _ATEN.convolution, _ATEN.convolution_backward,
}  # fmt: skip


class Recorder(TorchDispatchMode):
    """Records the products inside the block, with their operands."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket in PRODUCTS:
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def repeat(self) -> None:
        for func, args, kwargs in self.calls:
            func(*args, **kwargs)
