"""Which inputs the kernels take: others go to torch's own functions, with whole gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_plain(x: Any) -> bool:
    """A dense tensor, outside of autocast and of functional transforms (vmap, grad)."""
    return (
        isinstance(x, Tensor)
        and not x.is_nested
        and x.layout is torch.strided
        and not torch.is_autocast_enabled(x.device.type)
        and not torch._C._are_functorch_transforms_active()
    )
