"""What kernels take, and how they keep their own operations to themselves."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils._device import DeviceContext


def is_plain(x: Any) -> bool:
    """A dense tensor, outside of autocast, functional transforms (vmap, grad) and forward mode."""
    return (
        has_standard_operations(x)
        and not x.is_nested
        and x.layout is torch.strided
        and not torch.is_autocast_enabled(x.device.type)
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._functorch.is_functorch_wrapped_tensor(
            x
        )  # one that outlived its transform
        and forward_ad._current_level < 0
    )


def is_transforming() -> bool:
    """Whether a functional transform (vmap, grad) or forward mode is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def has_standard_operations(x: Any) -> bool:
    """A tensor or parameter, and not of a class that sees or changes what operations do."""
    kind: Any = type(x)
    if kind is Tensor or kind is nn.Parameter:
        return True
    return isinstance(x, nn.Parameter) and kind.__torch_function__ is _NO_FUNCTION


_NO_FUNCTION: Any = nn.Parameter.__torch_function__


_FOLLOWED = "_fedplt_followed"


def follow(x: Tensor) -> None:
    """Mark an activation without a gradient that would have one if all layers were trained."""
    if x.is_floating_point() and not x.requires_grad:
        setattr(x, _FOLLOWED, True)


def is_followed(x: Any) -> bool:
    return hasattr(x, _FOLLOWED)


def require_followed(x: Any) -> None:
    """Give a marked activation a gradient: from here on, all is as in full training.

    Adding -0.0 changes no bit, and makes it no leaf, which could not be changed in place.
    """
    if not is_followed(x) or x.requires_grad:
        return
    nothing = torch.full((), -0.0, dtype=x.dtype, device=x.device, requires_grad=True)
    try:
        with torch.enable_grad(), _unsafe_preserve_version_counter(x):
            x.add_(nothing)
    except RuntimeError:  # one number stands for several (expand)
        x.requires_grad_()


@contextmanager
def followed_functions(mark: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """Inside the block, ``mark(result, args, kwargs)`` is called for custom autograd functions.

    No function mode sees these. A reentrant checkpoint of a marked activation computes gradients:
    torch computes none where no input requires one, although weights inside do.
    """
    kind: Any = torch.autograd.function._SingleLevelFunction  # what Function.apply calls
    before = vars(kind).get("apply")

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if issubclass(cls, torch.utils.checkpoint.CheckpointFunction):
            for value in args:
                require_followed(value)
        own = super(kind, cls).apply if before is None else before.__get__(None, cls)
        result = own(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            mark(result, args, kwargs)
        return result

    kind.apply = classmethod(apply)
    try:
        yield
    finally:
        del kind.apply
        if before is not None:
            kind.apply = before


def is_batched(x: Tensor) -> bool:
    """Several gradients at once (``is_grads_batched``), which are never changed in place."""
    return torch._C._functorch.is_legacy_batchedtensor(x)


@contextmanager
def eagerly() -> Iterator[None]:
    """What ``torch.compile`` made runs as it was written: its operations must be seen."""
    if "torch._dynamo" not in sys.modules:  # nothing can be compiled, and importing it is slow
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def has_other_modes() -> bool:
    """Whether somebody beside a ``train_only`` block sees or changes all operations."""
    return torch._C._len_torch_function_stack() > 1 and num_function_modes() > 1


def num_function_modes() -> int:
    """Modes that see or change all operations now; one for a default device does neither."""
    number = torch._C._len_torch_function_stack()
    for place in range(number):
        if isinstance(torch._C._get_function_stack_at(place), DeviceContext):
            number -= 1
    return number


def applied(function: type[Function]) -> Callable[..., Any]:
    """``function.apply`` for plain inputs, without its preparations for functional transforms."""
    apply: Callable[..., Any] = super(Function, function).apply  # type: ignore[misc]
    return apply


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
