"""Errors of a ``train_only`` block: what it refuses, and what to do instead."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.checkpoint import CheckpointError

from fedplt.errors import CutError
from fedplt.kernels import Slices
from fedplt.torch_internals import is_functorch_tensor

_ENDED = "_fedplt_block_ended"
"""Name of an attribute that marks slices whose block has ended."""
_WHOLE_MATRICES = {"adafactor", "muon", "shampoo", "soap", "lamb", "lars"}
"""Class names of optimizers in which the step of a row depends on other rows of the matrix."""


def tensor_of(model: nn.Module, name: str) -> Any:
    """The tensor of this name, or None."""
    try:
        return attrgetter(name)(model)
    except AttributeError:
        return None


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse wrappers that use the gradients of whole parameters."""
    for name, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise CutError(
                f"{name or 'the model'} is a DistributedDataParallel: gradients of slices would "
                "not be averaged over its processes. Train its .module, and average the updates."
            )


def refuse_replaced(model: nn.Module, trained: Iterable[Slices]) -> None:
    """Refuse tensors that were replaced inside the block: they were not trained."""
    for slices in trained:
        now, own = tensor_of(model, slices.name), slices.parameter
        if now is not own:
            raise CutError(
                f"{slices.name} was replaced by another tensor while its slices were trained "
                "(load_state_dict(assign=True), or an assignment to the module). Copy the "
                "values into it instead, or replace it before the block."
            )
        view, pairs = slices.views[0], zip(slices.leaves, slices.views, strict=True)
        is_elsewhere = own.untyped_storage().data_ptr() != view.untyped_storage().data_ptr()
        if is_elsewhere or any(leaf.data_ptr() != view.data_ptr() for leaf, view in pairs):
            raise CutError(
                f"{slices.name} was moved to other memory while its slices were trained "
                "(swap_tensors, or Tensor.set_). Copy the values into it instead."
            )


def refuse_other_data(name_of: Callable[[Tensor], str], tensor: Tensor, value: Tensor) -> None:
    """Refuse ``tensor.data = value`` with another shape, type or device."""
    given, own = ((t.dtype, tuple(t.shape), t.device, t.layout) for t in (value, tensor))
    if given != own:
        raise CutError(
            f"{name_of(tensor)}.data was given a tensor of {given[0]} {given[1]} on {given[2]} "
            f"while slices are trained; it is of {own[0]} {own[1]} on {own[2]}. "
            "Change shapes and types before the block."
        )


def refuse_lost_gradient(trained: Iterable[Slices]) -> None:
    """Refuse a loss without a gradient, if trained parameters were used for it."""
    used = [slices.name for slices in trained if slices.uses]
    if used:
        raise CutError(
            f"the loss has requires_grad False, although {used[0]} was used. Look for detach(), "
            "torch.no_grad, make_fx, or a checkpoint with use_reentrant=True whose inputs require "
            "no gradient."
        )


@contextmanager
def explained_errors() -> Iterator[None]:
    """Around a backward pass: add the possible causes to torch's errors."""
    try:
        yield
    except CheckpointError as error:
        raise CutError(
            f"{str(error).partition('Tip:')[0].strip()}\nA checkpoint in another thread is "
            "computed again in this one, where train_only changes its operations. Use checkpoints "
            "only in the thread of the block."
        ) from error
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise CutError(
            f"{error}\nEither the model changes an activation in place that is needed; or it ran "
            "a normalization layer in evaluation mode and then in training mode (call backward() "
            "in between); or a weight is used both where train_only sees it and where it does not "
            "(in another thread, in TorchScript): use it in one of these ways, or use momentum, so "
            "that the step is not fused into the backward pass."
        ) from error


_in_blocks: set[int] = set()
"""Identities of the parameters of all models that are in a block."""
_inspected: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
"""Checked optimizers, and their number of parameters at the check: groups may be added later."""


@contextmanager
def refused_optimizers(own: Collection[int], leaves: Collection[Tensor]) -> Iterator[None]:
    """Refuse optimizers that change untrained values, or that step its slices after the block.

    ``own``: identities of the model's parameters; ``leaves``: the slices.
    """
    _watch_optimizers()
    _in_blocks.update(own)
    _inspected.clear()
    try:
        yield
    finally:
        _in_blocks.difference_update(own)
        _inspected.clear()
        for leaf in leaves:
            setattr(leaf, _ENDED, True)


@functools.cache
def _watch_optimizers() -> None:
    def inspect(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        number = sum([len(group["params"]) for group in optimizer.param_groups])
        if _inspected.get(optimizer) != number:
            _check_optimizer(optimizer)
            _inspected[optimizer] = number

    register_optimizer_step_pre_hook(inspect)


def _check_optimizer(optimizer: Optimizer) -> None:
    kind = type(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    refuse_ended(parameters, f"this {kind.__name__} has")
    if any(id(parameter) in _in_blocks for parameter in parameters):
        raise CutError(
            f"this {kind.__name__} was given parameters of the model, of which only slices are "
            "trained inside train_only: give it part.parameters()."
        )
    if _in_blocks and any(base.__name__.lower() in _WHOLE_MATRICES for base in kind.__mro__):
        raise CutError(
            f"{kind.__name__} treats a matrix as a whole, so a step of slices is not a part of the "
            "step of the whole. Use an optimizer that treats every coordinate alone, such as SGD "
            "or AdamW."
        )


def refuse_ended(tensors: Iterable[Any], holder: str) -> None:
    """Refuse slices of a block that has ended: backward passes no longer reach them."""
    if any(hasattr(tensor, _ENDED) for tensor in tensors):
        raise CutError(
            f"{holder} slices of a train_only block that has ended, so nothing would be trained. "
            "Make the optimizer, or the list of parameters, from this block's part.parameters(), "
            "and take optimizer steps inside the block."
        )


def new_gradient_node(parameter: Tensor) -> None:
    """Give a parameter a new autograd node: graphs from before and after do not share it.

    Torch drops the old node when the data type changes.
    """
    memory = parameter.data
    other = torch.float32 if parameter.dtype is torch.float16 else torch.float16
    parameter.data = torch.empty(0, dtype=other, device=parameter.device)
    parameter.data = memory


def refuse_late_gradient(name: str, gradients: Any) -> None:
    """Hook of a parameter's node in the block's graphs, after the block."""
    raise CutError(
        f"backward() was called after the train_only block for a loss that was computed inside, so "
        f"the gradient of {name} would be lost. Call it inside the block."
    )


def memory_of(tensor: Tensor) -> int:
    """Address of a tensor's memory; 0 if it is not known (sparse, nested, in vmap or grad)."""
    if tensor.layout is not torch.strided or tensor.is_nested or is_functorch_tensor(tensor):
        return 0
    return tensor.untyped_storage().data_ptr()
