"""The private parts of torch that fedplt uses, all of them: a new torch is tried here first.

Tested with torch 2.13.0; ``pyproject.toml`` allows no other minor version. Besides these, the
package reads private attributes of objects: ``_parameters``, ``_buffers`` and the hook tables of
modules; ``_version`` and the hook tables of tensors; ``_saved_*`` and ``_input_metadata`` of
autograd nodes. ``make test`` on another version shows whether they are all still there.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.autograd import Function, _make_grads, forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.autograd.graph import _engine_run_backward
from torch.nn.modules import batchnorm, conv, dropout, instancenorm
from torch.nn.modules import module as module_hooks
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# Base classes of the layers of 1, 2 and 3 dimensions.
BatchNormBase = batchnorm._BatchNorm
InstanceNormBase = instancenorm._InstanceNorm
ConvBase = conv._ConvNd
DropoutBase = dropout._DropoutNd

linear: Callable[..., Tensor] = torch._C._nn.linear
"""``F.linear`` before anybody replaced it."""
onednn_linear: Callable[..., Tensor] | None = (
    torch.ops.mkldnn._linear_pointwise.default if torch.backends.mkldnn.is_available() else None
)
"""``F.linear`` and an activation by oneDNN, on processors that it supports; no autograd."""
foreach_sub_ = torch._foreach_sub_
"""``tensor.sub_`` for lists of tensors, in one call."""
DisableTorchFunction = torch._C.DisableTorchFunction
"""Context manager: hides operations from all function modes."""
num_all_modes = torch._C._len_torch_function_stack
"""Active function modes, with those of default devices."""
run_backward = _engine_run_backward
"""The backward pass itself, which no function mode intercepts."""
make_grads = _make_grads
"""The gradients that it starts with."""
preserved_version = _unsafe_preserve_version_counter
"""Context manager: a change in place is not counted in ``tensor._version``."""
CustomFunctionBase: Any = _SingleLevelFunction
"""The class whose ``apply`` every custom autograd function calls."""
AccumulateGrad: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
"""The autograd node of a leaf tensor."""
is_functorch_tensor = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether it belongs to a functional transform (vmap, grad), maybe one that is over."""
is_batched = torch._C._functorch.is_legacy_batchedtensor
"""Several gradients at once (``is_grads_batched``), which are never changed in place."""
is_wrapper_subclass = is_traceable_wrapper_subclass
"""Whether a tensor wraps others and has no memory itself."""


_log_softmax: Any = torch.ops.aten._log_softmax.default
_log_softmax_backward: Any = torch.ops.aten._log_softmax_backward_data.default
_nll_loss: Any = torch.ops.aten.nll_loss_forward.default
_nll_loss_backward: Any = torch.ops.aten.nll_loss_backward.default
_OPTIONS = (None, 1, -100)
"""Of a loss: no weights, a mean, and the target that it ignores."""


def cross_entropy_and_gradient(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """``F.cross_entropy`` of (examples, classes), and what autograd computes as its gradient."""
    scores = _log_softmax(outputs, 1, False)
    loss, total = _nll_loss(scores, targets, *_OPTIONS)
    grad = _nll_loss_backward(torch.ones_like(loss), scores, targets, *_OPTIONS, total)
    return loss, _log_softmax_backward(grad, scores, 1, scores.dtype)


@functools.cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def seed_torch(seed: int) -> None:
    """``torch.manual_seed``, which records a stack for every kind of accelerator that is absent."""
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def kernel_accepts(x: Any) -> bool:
    """A dense tensor, outside of autocast, functional transforms (vmap, grad) and forward mode."""
    return (
        has_standard_operations(x)
        and not x.is_nested
        and x.layout is torch.strided
        and not torch.is_autocast_enabled(x.device.type)
        and not torch._C._are_functorch_transforms_active()
        and not is_functorch_tensor(x)
        and forward_ad._current_level < 0
    )


def is_transforming() -> bool:
    """Whether a functional transform (vmap, grad) or forward mode is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


_NO_FUNCTION: Any = nn.Parameter.__torch_function__


def has_standard_operations(x: Any) -> bool:
    """A tensor or parameter whose class does not override operations."""
    kind: Any = type(x)
    if kind is Tensor or kind is nn.Parameter:
        return True
    return isinstance(x, nn.Parameter) and kind.__torch_function__ is _NO_FUNCTION


def num_function_modes() -> int:
    """Active function modes that see or change all operations; one for a device does neither."""
    number = num_all_modes()
    for index in range(number):
        if isinstance(torch._C._get_function_stack_at(index), DeviceContext):
            number -= 1
    return number


def has_other_modes() -> bool:
    """Whether a function mode is active besides that of a ``train_only`` block."""
    return num_all_modes() > 1 and num_function_modes() > 1


def has_global_hooks() -> bool:
    """Whether hooks are registered on the calls of all modules."""
    return bool(
        module_hooks._global_forward_hooks
        or module_hooks._global_forward_pre_hooks
        or module_hooks._global_backward_hooks
        or module_hooks._global_backward_pre_hooks
    )


def has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


@contextmanager
def compiled_code_disabled() -> Iterator[None]:
    """Inside the block, what ``torch.compile`` made runs eagerly: function modes must see it."""
    if "torch._dynamo" not in sys.modules:  # nothing can be compiled, and importing it is slow
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def checkpoints_disabled() -> Iterator[None]:
    """Inside the block, checkpointed code runs once, as if it were not checkpointed.

    Reentrant checkpoints build their graph in the backward pass alone, so a forward pass would hide
    it. Others run again when the graph is read, which may change buffers.
    """

    def apply(function: Any, preserve: Any, *args: Any) -> Any:
        return function(*args)

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield  # torch calls the function here

    module: Any = torch.utils.checkpoint
    old = module._checkpoint_without_reentrant_generator
    module.CheckpointFunction.apply = apply
    module._checkpoint_without_reentrant_generator = generator
    try:
        yield
    finally:
        del module.CheckpointFunction.apply  # the class's own is inherited
        module._checkpoint_without_reentrant_generator = old


@contextmanager
def recorded_allocations() -> Iterator[list[int]]:
    """Records what torch allocates in the block; the list is filled when the block ends.

    Bytes in order, negative where memory is freed; memory from before the block is not in it.
    """
    state = torch._C._profiler
    options = (False, True, False, False, False)  # shapes, memory, stacks, FLOPs, modules
    config = state.ProfilerConfig(state.ProfilerState.CPU, *options, state._ExperimentalConfig())
    sizes: list[int] = []
    collects = gc.isenabled()
    gc.disable()  # it would free other memory at random moments
    # The older profiler: the newer one writes to stderr whenever it starts.
    torch._C._autograd._enable_profiler_legacy(config)
    try:
        yield sizes
    finally:
        threads = torch._C._autograd._disable_profiler_legacy()
        if collects:
            gc.enable()
        for thread in threads:
            kinds: Any = [event.kind() for event in thread]
            pairs = zip(kinds, thread, strict=True)
            sizes += [event.cpu_memory_usage() for kind, event in pairs if kind == "memory_alloc"]


def direct_apply(function: type[Function]) -> Callable[..., Any]:
    """``function.apply`` without its preparations for functional transforms."""
    apply: Callable[..., Any] = super(Function, function).apply  # type: ignore[misc]
    return apply


Given = ParamSpec("Given")
Result = TypeVar("Result")


def hidden_operations(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorator: hides the function's operations from function modes."""

    @functools.wraps(function)
    def inner(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with DisableTorchFunction():
            return function(*args, **kwargs)

    return inner


def hidden_backward(
    function: Callable[Concatenate[Any, tuple[Tensor, ...], Given], Result],
) -> Callable[Concatenate[Any, Given], Result]:
    """Decorator: the same for a ``backward`` of (context, saved tensors, gradients).

    Reading the saved tensors is not hidden: a checkpoint runs the model's forward pass for them.
    """

    @functools.wraps(function)
    def inner(ctx: Any, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        saved = ctx.saved_tensors
        with DisableTorchFunction():
            return function(ctx, saved, *args, **kwargs)

    return inner
