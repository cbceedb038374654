"""What kernels take, and how they keep their own operations to themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

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


Given = ParamSpec("Given")
Result = TypeVar("Result")


def unwatched(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Its operations are not seen by the mode that sees the model's."""

    @functools.wraps(function)
    def inner(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return inner


def unwatched_backward(
    function: Callable[Concatenate[Any, tuple[Tensor, ...], Given], Result],
) -> Callable[Concatenate[Any, Given], Result]:
    """The same for a backward pass of (context, saved tensors, gradients).

    A checkpoint computes saved tensors again when they are asked for: that is the model's own
    forward pass, and must be seen.
    """

    @functools.wraps(function)
    def inner(ctx: Any, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        saved = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            return function(ctx, saved, *args, **kwargs)

    return inner
