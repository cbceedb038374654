"""Train a slice of a model in any training loop.

with fedplt.train_only(model, plan.assignment(3)) as part:
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    ...                                  # an ordinary loop
update = part.update(num_examples=600)   # what changed, nothing else
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torch import nn

from fedplt.client.slices import TrainableSlices
from fedplt.errors import CutError
from fedplt.kernels import attention_forward, chained, forward_of
from fedplt.planning import Assignment


@contextmanager
def train_only(
    model: nn.Module, assignment: Assignment, *, keep_old: bool = True
) -> Iterator[TrainableSlices]:
    """Inside the block, only the assigned slices of the model get gradients and change.

    All other parameters, and the running statistics of their normalization layers, keep their
    bits; other buffers change as the model changes them. Weight gradients are computed for the
    trained rows only. The optimizer must treat each coordinate independently (SGD, Adam, ...; not
    LBFGS). After the block the model is an ordinary module again, with the trained values.

    ``keep_old=False`` saves the memory of a copy of the slices; ``update()`` and ``restore()``
    are then not available.
    """
    if any(module in _being_trained for module in model.modules()):
        raise CutError(
            "train_only: this model, or a part of it, is already in a train_only block; leave "
            "that block first."
        )
    part = TrainableSlices(model, assignment, keep_old=keep_old)
    required = [(p, p.requires_grad) for p in model.parameters()]
    handles: list[Any] = [model.register_forward_pre_hook(lambda *_: part.begin_forward())]
    patched: list[nn.Module] = []
    _being_trained.update(model.modules())
    gradients = [(p, p.grad) for p in model.parameters()]
    try:
        for parameter, _ in required:
            parameter.requires_grad_(id(parameter) in part.slices)
            parameter.grad = None  # a gradient from before the block must not be used in it
        for slices in part.slices.values():
            handles.append(
                slices.parameter.register_post_accumulate_grad_hook(slices.scatter_gradient)
            )
        for name, module in model.named_modules():
            forward = _forward(part, name, module)
            if forward is not None:
                module.forward = forward
                patched.append(module)
        yield part
    finally:
        _being_trained.difference_update(model.modules())
        for handle in handles:
            handle.remove()
        for module in patched:
            del module.forward
        for parameter, requires in required:
            parameter.requires_grad_(requires)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        part.release()


_being_trained: WeakSet[nn.Module] = WeakSet()


class _Patched:
    """A module's forward inside the block; a deep copy of the module gets its class's forward."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self.module, self.forward = module, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        copied: nn.Module = memo[id(self.module)]
        return functools.partial(type(copied).forward, copied)


def _forward(part: TrainableSlices, name: str, module: nn.Module) -> _Patched | None:
    """The forward that replaces a module's own inside the block; None if none does."""
    if "forward" in vars(module):
        return None
    found: Callable[..., Any] | None = None
    if isinstance(module, nn.Sequential):
        found = chained(module, name, part.modules)
    elif isinstance(module, nn.MultiheadAttention):
        standard = type(module).forward is nn.MultiheadAttention.forward
        caught = part.caught(module) if standard else {}
        found = functools.partial(attention_forward, module, caught) if caught else None
    elif name in part.modules:
        forward = forward_of(module)
        assert forward is not None
        found = functools.partial(forward, module, part.modules[name])
    return None if found is None else _Patched(module, found)
