"""Train a slice of a model in any training loop.

with fedplt.train_only(model, plan.assignment(3)) as part:
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    ...                                  # an ordinary loop
update = part.update(num_examples=600)   # the change of the trained slices
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from fedplt.client.interception import Interception
from fedplt.client.refusals import (
    new_gradient_node,
    refuse_late_gradient,
    refuse_replaced,
    refuse_wrapped,
    refused_optimizers,
)
from fedplt.client.slices import TrainableSlices
from fedplt.errors import CutError
from fedplt.kernels import BlockForward, Chained, Slices, has_running_statistics, marked_functions
from fedplt.planning import Assignment
from fedplt.torch_internals import compiled_code_disabled


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
    refuse_wrapped(model)
    part = TrainableSlices(model, assignment, keep_old=keep_old)
    required = [(p, p.requires_grad) for p in model.parameters()]
    handles: list[Any] = []
    patched: list[BlockForward] = []
    nodes: list[tuple[Slices, Node]] = []
    """Autograd nodes of the parameters in the block's graphs; later graphs have other nodes."""
    modules = list(model.modules())
    _being_trained.update(modules)
    gradients = [(p, p.grad) for p in model.parameters()]
    interception = Interception(part, {id(p): needs for p, needs in required})
    try:
        for parameter, _ in required:
            parameter.requires_grad_(id(parameter) in part.slices)
            parameter.grad = None  # a gradient from before the block must not count
        for slices in part.slices.values():
            handles.append(
                slices.parameter.register_post_accumulate_grad_hook(slices.scatter_gradient)
            )
            new_gradient_node(slices.parameter)
            nodes.append((slices, get_gradient_edge(slices.parameter).node))
        for module in model.modules():
            faster = _faster_forward(module, part, interception)
            if faster is not None and "forward" not in vars(module):
                module.forward = BlockForward(module, faster)
                patched.append(module.forward)
        own = {id(parameter) for parameter, _ in required}
        functions = (
            marked_functions(interception.mark) if interception.has_frozen else nullcontext()
        )
        with (
            _batches_counted(model),
            compiled_code_disabled(),
            refused_optimizers(own, list(part.parameters())),
            functions,
            interception,
        ):
            yield part
        refuse_replaced(model, part.slices.values())
    finally:
        _being_trained.difference_update(modules)
        for handle in handles:
            handle.remove()
        for slices, node in nodes:
            node.register_prehook(functools.partial(refuse_late_gradient, slices.name))
            new_gradient_node(slices.parameter)
        for forward in patched:
            forward.forward = None
            if vars(forward.module).get("forward") is forward:  # unless deleted or replaced
                del forward.module.forward
        for parameter, requires in required:
            parameter.requires_grad_(requires)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        part.release()


def _faster_forward(
    module: Any, part: TrainableSlices, interception: Interception
) -> Callable[[Any], Any] | None:
    """A forward with the same result; it checks on every call whether the fast path applies."""
    if isinstance(module, nn.Sequential):
        return Chained(module, part.rows_of)
    direct: dict[Any, Callable[[Any, Any], Any]] = {
        nn.Linear: interception.linear,
        nn.Embedding: interception.embedding,
        nn.LayerNorm: interception.layer_norm,
    }
    found = direct.get(type(module))
    return None if found is None else functools.partial(found, module)


_being_trained: WeakSet[nn.Module] = WeakSet()


@contextmanager
def _batches_counted(model: nn.Module) -> Iterator[None]:
    """Restore ``num_batches_tracked``; inside the block it counts the block's batches."""
    counters: list[Tensor] = [
        module.num_batches_tracked  # type: ignore[misc]
        for module in model.modules()
        if has_running_statistics(module)
        if getattr(module, "num_batches_tracked", None) is not None
    ]
    old = [counter.clone() for counter in counters]
    try:
        for counter in counters:
            counter.zero_()
        yield
    finally:
        for counter, before in zip(counters, old, strict=True):
            counter.copy_(before)
