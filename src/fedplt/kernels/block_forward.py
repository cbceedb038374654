"""Replaced ``forward`` methods in a ``train_only`` block, and checks that torch is not patched."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from fedplt.errors import CutError
from fedplt.torch_internals import linear


def is_torchs(function: Any) -> bool:
    """Whether torch defines a function: other packages may have replaced it before this import.

    A replacement has the globals of the module that defines it.
    """
    module = getattr(function, "__globals__", {}).get("__name__", "")
    return isinstance(function, BuiltinFunctionType) or module.partition(".")[0] == "torch"


def _unpatched(owner: Any, key: str) -> Any:
    """Torch's attribute; if it was replaced, a new object that no comparison matches."""
    found = getattr(owner, key)
    named = found.__name__ == key if hasattr(found, "__name__") else False
    return found if is_torchs(found) and (named or key == "__call__") else object()


# As torch defines them. Every call compares the current attributes with these.
_FORWARDS: dict[Any, Any] = {
    kind: _unpatched(kind, "forward")
    for kind in (nn.Sequential, nn.Linear, nn.Embedding, nn.LayerNorm)
}
_ITER: Any = _unpatched(nn.Sequential, "__iter__")
_CALL: Any = _unpatched(nn.Module, "__call__")
_CALL_IMPL: Any = _unpatched(nn.Module, "_call_impl")
_RELU_FORWARD: Any = _unpatched(nn.ReLU, "forward")
_CHAINED: Any = (_unpatched(F, "linear"), _unpatched(F, "relu"), _unpatched(torch, "relu"))
_TENSOR: Any = torch.Tensor
_BUILT_IN = {type(linear), type(_TENSOR.add), type(_TENSOR.grad.__get__)}
_FUNCTIONS = {name: value for name, value in vars(F).items() if is_torchs(value)}
_KNOWN = frozenset(_FUNCTIONS.values())
_REPLACED = {name for name, value in vars(F).items() if callable(value)} - _FUNCTIONS.keys()
"""Functions that were replaced before fedplt was imported: the originals are not known."""


def is_original(func: Callable[..., Any]) -> bool:
    """Whether a function is torch's own, not a replacement of it."""
    return type(func) in _BUILT_IN or func in _KNOWN


def original(func: Callable[..., Any]) -> Callable[..., Any]:
    """The original torch function, if a function mode is called with a replacement of it.

    The replacement calls the original. That one looks up its own name, and so passes the
    replacement to the mode again: calling it would apply the replacement twice.
    """
    if is_original(func):
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
    """Replaces a module's ``forward`` by a faster one; copies of the module do not get it."""

    def __init__(self, module: nn.Module, forward: Callable[[Any], Any] | None) -> None:
        self.module, self.forward = module, forward
        """``forward`` is None after the block: others may still hold this object."""
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
    """Whether the instance overrides the ``forward`` or the call of its class."""
    own = module.__dict__
    forward = own.get("forward")
    return (forward is not None and type(forward) is not BlockForward) or "_call_impl" in own


def is_shadowed(module: nn.Module) -> bool:
    """Whether attributes of the instance hide its parameters."""
    own = module.__dict__
    return "weight" in own or "bias" in own


def is_standard_chain(sequential: nn.Sequential) -> bool:
    """Whether no class or function that a chain of Linear and ReLU uses is patched."""
    return (
        type(sequential).__iter__ is _ITER
        and nn.Linear.forward is _FORWARDS[nn.Linear]
        and nn.ReLU.forward is _RELU_FORWARD
        and nn.Sequential.forward is _FORWARDS[nn.Sequential]
        and nn.Sequential.__call__ is _CALL
        and nn.Linear.__call__ is _CALL
        and nn.ReLU.__call__ is _CALL
        and nn.Sequential._call_impl is _CALL_IMPL
        and nn.Linear._call_impl is _CALL_IMPL
        and nn.ReLU._call_impl is _CALL_IMPL
        and (F.linear, F.relu, torch.relu) == _CHAINED
    )
