"""Floating-point operations as torch counts them, without its hooks on modules."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, shape_wrapper


def _addmm_flops(out, one, two, out_shape=None, **_):
    return 2 * one[0] * one[1] * two[1]


def _linear_flops(x, weight, *_, out_shape=None, **__):
    return 2 * x[0] * x[1] * weight[0]


FLOPS = {
    **flop_registry,
    torch.ops.aten.addmm_: shape_wrapper(_addmm_flops),
    torch.ops.mkldnn._linear_pointwise: shape_wrapper(_linear_flops),
}
"""torch knows ``addmm`` by itself, but not these."""


class flop_counter(TorchDispatchMode):  # noqa: N801 (used as a function)
    """``FlopCounterMode`` looks at activations with hooks, for which nothing is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        count = FLOPS.get(func._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=result)
        return result

    def get_total_flops(self) -> int:
        return self.total
