"""Activations that need no gradient on this client, but would if all layers were trained.

Models may branch on ``requires_grad``, take gradients of activations or checkpoint them. So these
activations are marked, and get a gradient when the model depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from fedplt.torch_internals import CustomFunctionBase, DisableTorchFunction, preserved_version

_MARK = "_fedplt_frozen"


def mark_frozen(x: Tensor) -> None:
    if x.is_floating_point() and not x.requires_grad:
        setattr(x, _MARK, True)


def is_frozen(x: Any) -> bool:
    return hasattr(x, _MARK)


def require_gradient(x: Any) -> None:
    """Give a marked activation a gradient: from here on, autograd works as in full training.

    Adding -0.0 changes no bit, and the result is not a leaf: leaves cannot be changed in place.
    """
    if not is_frozen(x) or x.requires_grad:
        return
    nothing = torch.full((), -0.0, dtype=x.dtype, device=x.device, requires_grad=True)
    try:
        with torch.enable_grad(), preserved_version(x):
            x.add_(nothing)
    except RuntimeError:  # several elements share memory (expand)
        x.requires_grad_()


@contextmanager
def marked_functions(mark: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """Inside the block, ``mark(result, args, kwargs)`` is called for custom autograd functions.

    No function mode sees these. Marked inputs of a reentrant checkpoint get a gradient: torch
    computes none if no input requires one, even if weights inside do.
    """
    kind = CustomFunctionBase
    before = vars(kind).get("apply")

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if issubclass(cls, CheckpointFunction):
            for value in args:
                require_gradient(value)
        own = super(kind, cls).apply if before is None else before.__get__(None, cls)
        result = own(*args, **kwargs)
        with DisableTorchFunction():
            mark(result, args, kwargs)
        return result

    kind.apply = classmethod(apply)
    try:
        yield
    finally:
        del kind.apply
        if before is not None:
            kind.apply = before
