"""Forwards that modules have inside a ``train_only`` block, and what they replace."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from fedplt.errors import CutError


def is_torchs(function: Any) -> bool:
    """Whether torch defines a function; users and packages replace some, maybe before this import.

    Of a wrapped function, the globals are those of the module that wrapped it.
    """
    module = getattr(function, "__globals__", {}).get("__name__", "")
    return isinstance(function, BuiltinFunctionType) or module.partition(".")[0] == "torch"


def _own(owner: Any, key: str) -> Any:
    """What torch calls so; where it was replaced, an object that nothing is identical to."""
    found = getattr(owner, key)
    named = found.__name__ == key if hasattr(found, "__name__") else False
    return found if is_torchs(found) and (named or key == "__call__") else object()


# As torch defines them. What is found in a call is compared.
_FORWARDS: dict[Any, Any] = {
    kind: _own(kind, "forward") for kind in (nn.Sequential, nn.Linear, nn.Embedding, nn.LayerNorm)
}
_ITER: Any = _own(nn.Sequential, "__iter__")
_CALL: Any = _own(nn.Module, "__call__")
_CALL_IMPL: Any = _own(nn.Module, "_call_impl")
_RELU_FORWARD: Any = _own(nn.ReLU, "forward")
_CHAINED: Any = (_own(F, "linear"), _own(F, "relu"), _own(torch, "relu"))
_TENSOR: Any = torch.Tensor
_BUILT_IN = {type(torch._C._nn.linear), type(_TENSOR.add), type(_TENSOR.grad.__get__)}
_FUNCTIONS = {name: value for name, value in vars(F).items() if is_torchs(value)}
_KNOWN = frozenset(_FUNCTIONS.values())
_REPLACED = {name for name, value in vars(F).items() if callable(value)} - _FUNCTIONS.keys()
"""Functions that were replaced before fedplt was imported: torch's own are not known."""


def original(func: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's own function where a mode is called with a replacement of it.

    The replacement has called torch's own, which calls the mode with what has its name: calling
    that would apply the replacement twice.
    """
    if type(func) in _BUILT_IN or func in _KNOWN:
        return func
    name = next((name for name, found in vars(F).items() if found is func), "")
    if name in _REPLACED:
        raise CutError(
            f"torch.nn.functional.{name} was replaced before this library was imported, so torch's "
            "own is not known here and the replacement would be applied twice. Import this "
            "library first, then replace the function."
        )
    found: Callable[..., Any] = _FUNCTIONS.get(name, func)
    return found


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
        and (F.linear, F.relu, torch.relu) == _CHAINED
    )
