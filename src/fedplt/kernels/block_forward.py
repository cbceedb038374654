"""Forwards that modules have inside a ``train_only`` block, and what they replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

# As torch defines them. Users patch classes and functions: what is found in a call is compared.
_FORWARDS: dict[Any, Any] = {
    kind: kind.forward for kind in (nn.Sequential, nn.Linear, nn.Embedding, nn.LayerNorm)
}
_ITER: Any = nn.Sequential.__iter__
_CALL: Any = nn.Module.__call__
_CALL_IMPL: Any = nn.Module._call_impl
_RELU_FORWARD: Any = nn.ReLU.forward
_FUNCTIONS: Any = (F.linear, F.relu, torch.relu)


class BlockForward:
    """Computes what the module's own does. A copy of the module, which is not trained, has none."""

    def __init__(self, module: nn.Module, forward: Callable[[Any], Any] | None) -> None:
        self.module, self.forward = module, forward
        """The forward is set to None at the end of the block: others may have kept this object."""
        kind = nn.Sequential if isinstance(module, nn.Sequential) else type(module)
        self.standard = _FORWARDS.get(kind)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = type(self.module).forward
        if self.forward is not None and own is self.standard and len(args) == 1 and not kwargs:
            return self.forward(args[0])
        return own(self.module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockForward:
        return BlockForward(memo[id(self.module)], None)

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockForward, (self.module, None)


def has_own_forward(module: nn.Module) -> bool:
    """Whether this instance is called in another way than its class defines."""
    own = module.__dict__
    forward = own.get("forward")
    return (forward is not None and type(forward) is not BlockForward) or "_call_impl" in own


def is_shadowed(module: nn.Module) -> bool:
    """Whether the module computes with other tensors than its parameters of these names."""
    own = module.__dict__
    return "weight" in own or "bias" in own


def is_standard_chain(sequential: nn.Sequential) -> bool:
    """Whether a Sequential and its Linear and ReLU children are called as torch defines it."""
    return (
        type(sequential).__iter__ is _ITER
        and nn.Linear.forward is _FORWARDS[nn.Linear]
        and nn.ReLU.forward is _RELU_FORWARD
        and nn.Linear.__call__ is _CALL
        and nn.ReLU.__call__ is _CALL
        and nn.Linear._call_impl is _CALL_IMPL
        and nn.ReLU._call_impl is _CALL_IMPL
        and (F.linear, F.relu, torch.relu) == _FUNCTIONS
    )
