"""What a ``train_only`` block refuses, in words, at the step where it happens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from fedplt.errors import CutError
from fedplt.kernels import Slices
from fedplt.planning import split_name

_WHOLE_MATRICES = ("Adafactor", "Muon")
"""Optimizers of torch whose step of a row depends on the other rows of its matrix."""


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """All modules under all of their names."""
    return dict(model.named_modules(remove_duplicate=False))


def tensor_of(modules: Mapping[str, nn.Module], name: str) -> Any:
    """The tensor of this name; None where there is none."""
    owner, key = split_name(name)
    return getattr(modules.get(owner), key, None)


def refuse_wrapped(model: nn.Module) -> None:
    """Wrappers that do something with whole gradients, which slices do not have."""
    for name, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise CutError(
                f"{name or 'the model'} is a DistributedDataParallel, which averages the gradients "
                "of whole parameters over its processes; inside train_only they go to slices, and "
                "would not be averaged. Train the module in it (.module), and average the updates."
            )


def refuse_replaced(model: nn.Module, trained: Iterable[Slices]) -> None:
    """Tensors that were replaced inside the block: training went on without them."""
    modules = modules_of(model)
    for slices in trained:
        now, own = tensor_of(modules, slices.name), slices.parameter
        if now is not own:
            raise CutError(
                f"{slices.name} was replaced by another tensor while its slices were trained "
                "(load_state_dict(assign=True), or an assignment to the module). Copy the "
                "values into it instead, or replace it before the block."
            )
        view = slices.views[0]
        if own.untyped_storage().data_ptr() != view.untyped_storage().data_ptr():
            raise CutError(
                f"{slices.name} was moved to other memory while its slices were trained "
                "(swap_tensors, or Tensor.set_). Copy the values into it instead."
            )


def refuse_lost_gradient(trained: Iterable[Slices]) -> None:
    """A loss without a gradient, though something that is trained was used for it."""
    used = [slices.name for slices in trained if slices.uses]
    if used:
        raise CutError(
            f"the loss does not depend on what this client trains, although {used[0]} was used: a "
            "loss with requires_grad False gives no gradient. Is something detached, under "
            "torch.no_grad, traced (make_fx), or in a checkpoint with use_reentrant=True whose "
            "inputs require no gradient, on the way to it?"
        )


def refuse_hidden_use(error: RuntimeError) -> None:
    """A backward pass failed: perhaps because a fused step moved a weight that it needed."""
    if "modified by an inplace operation" in str(error):
        raise CutError(
            f"{error}\nEither the model changes an activation in place that is needed, or it uses "
            "a weight where train_only cannot see it (in another thread, in TorchScript) and in "
            "its own operations, too, which a step that is fused into the backward pass does not "
            "allow. Use it in one of these ways, or an optimizer with momentum, which is not fused."
        ) from error


@contextmanager
def refused_optimizers(own: Collection[int]) -> Iterator[None]:
    """Optimizers that would move what is not trained; ``own``: the model's own parameters."""

    seen: WeakSet[Optimizer] = WeakSet()

    def look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer in seen:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(id(parameter) in own for parameter in parameters):
            raise CutError(
                f"this {type(optimizer).__name__} was given parameters of the model, of which only "
                "slices are trained inside train_only: give it part.parameters()."
            )
        if type(optimizer).__name__ in _WHOLE_MATRICES:
            raise CutError(
                f"{type(optimizer).__name__} treats a matrix as a whole, so a step of slices is "
                "not a part of the step of the whole. Use an optimizer that treats every "
                "coordinate alone, such as SGD or AdamW."
            )
        seen.add(optimizer)

    handle = register_optimizer_step_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def memory_of(tensor: Tensor) -> int:
    """Where its numbers lie; 0 where that is not known (sparse, nested, in vmap or grad)."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return 0
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return 0
    return tensor.untyped_storage().data_ptr()
