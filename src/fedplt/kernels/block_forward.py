"""Forwards that modules have inside a ``train_only`` block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class BlockForward:
    """Computes what the module's own does. A copy of the module, which is not trained, has none."""

    def __init__(self, module: nn.Module, forward: Callable[[Any], Any] | None) -> None:
        self.module, self.forward = module, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.forward is not None and len(args) == 1 and not kwargs:
            return self.forward(args[0])
        return type(self.module).forward(self.module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockForward:
        return BlockForward(memo[id(self.module)], None)

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockForward, (self.module, None)


def has_own_forward(module: nn.Module) -> bool:
    """Whether somebody gave this instance a forward other than its class's."""
    forward = vars(module).get("forward")
    return forward is not None and type(forward) is not BlockForward
