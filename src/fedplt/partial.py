"""Train a slice of a model in any training loop.

with fedplt.train_only(model, plan.client(3)) as part:
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    ...                                  # the usual loop
update = part.update(num_examples=600)   # what changed, nothing else
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from fedplt.chain import chained
from fedplt.errors import CutError
from fedplt.layers import TensorSpec
from fedplt.plan import Assignment
from fedplt.sliced import forward_of
from fedplt.sliced.attention import Caught, attention
from fedplt.trained import Rows, Slices, TrainedRows, axis_first
from fedplt.update import ClientUpdate, update_norm


class Part:
    """The trained slices of a model: parameters to optimise, and what became of them."""

    def __init__(self, model: nn.Module, assignment: Assignment, *, keep_old: bool = True) -> None:
        if assignment.is_submodel:
            raise CutError(
                "this client trains a smaller model, not a slice of this one: build it with "
                "fedplt.submodules.Submodels(model).make(assignment, state) and train "
                "assignment.dense."
            )
        self.assignment = assignment
        self._views: list[Tensor] = []  # every trained slice, in the order of the update
        self._parameters: list[nn.Parameter] = []
        self.slices: dict[int, Slices] = {}  # by the parameter's identity: it may be tied
        self.modules: dict[str, TrainedRows] = {}
        self._rate = 0.0
        statistics: dict[str, Rows] = {}
        for tensor, rows in _by_tensor(assignment):
            self._take(model, tensor, rows)
            if tensor.is_buffer:
                statistics[tensor.name.rpartition(".")[0]] = rows
        owners = Counter(id(p) for module in model.modules() for p in _own(module).values())
        for name, module in model.named_modules():
            trained = self._trained_rows(module, statistics.get(name, ()))
            if trained is not None:
                trained.is_fusable = all(owners[id(p)] == 1 for p in _own(module).values())
                self.modules[name] = trained
        self._connect()
        self._before = self._values() if keep_old else None

    def _take(self, model: nn.Module, tensor: TensorSpec, rows: Rows) -> None:
        name, _, key = tensor.name.rpartition(".")
        parameter = getattr(model.get_submodule(name), key)
        if tuple(parameter.shape) != tensor.shape:
            raise CutError(
                f"{tensor.name} has shape {tuple(parameter.shape)} in this model and "
                f"{tensor.shape} in the plan: the plan was made for another model."
            )
        whole = axis_first(parameter.detach(), tensor.axis)
        all_rows = rows == ((0, tensor.num_rows),)
        views = [whole] if all_rows else [whole[start:stop] for start, stop in rows]
        self._views += views
        if not tensor.is_buffer:
            leaves = [nn.Parameter(view) for view in views]
            self.slices[id(parameter)] = Slices(parameter, tensor.axis, rows, views, leaves)
            self._parameters += leaves

    def _trained_rows(self, module: nn.Module, statistics: Rows) -> TrainedRows | None:
        """What a forward of :mod:`fedplt.sliced` needs to know of a module, if it has one."""
        if forward_of(module) is None:
            return None
        if _has_statistics(module):
            return TrainedRows(statistics)
        own = _own(module)
        found = {key: self.slices[id(p)] for key, p in own.items() if id(p) in self.slices}
        if "weight" not in found or len({slices.rows for slices in found.values()}) > 1:
            return None
        return TrainedRows(
            found["weight"].rows,
            tensors={
                key: found[key].whole if key in found else p.detach() for key, p in own.items()
            },
            views={key: slices.views for key, slices in found.items()},
            leaves={key: slices.leaves for key, slices in found.items()},
        )

    def caught(self, module: nn.MultiheadAttention) -> Caught:
        """The weights of an attention module whose products are caught."""
        result: Caught = {}
        pairs = (
            (module.in_proj_weight, module.in_proj_bias),
            (module.out_proj.weight, module.out_proj.bias),
        )
        for weight, bias in pairs:
            slices = self.slices.get(id(weight))
            if slices is None or weight is None:
                continue
            trained = TrainedRows(slices.rows, {"weight": slices.whole}, is_fusable=False)
            trained.leaves["weight"] = slices.leaves
            if bias is not None:
                trained.tensors["bias"] = bias.detach()
                if id(bias) in self.slices:
                    trained.leaves["bias"] = self.slices[id(bias)].leaves
            result[id(weight)] = (weight, trained)
        return result

    def _connect(self) -> None:
        """Tell modules whose input gradients are needed for a few columns only."""
        for flow in self.assignment.layers.flow:
            consumer, feeder = self.modules.get(flow.name), self.modules.get(flow.feeder or "")
            if consumer is not None and flow.used_elsewhere:
                consumer.is_fusable = False
            if consumer is None or feeder is None or flow.feeder is None:
                continue
            norms = [self.modules.get(name) for name in flow.norms]
            if all(norm is not None and norm.rows == feeder.rows for norm in norms):
                consumer.feeder, consumer.columns_per_channel = feeder, flow.columns

    def fuse_sgd(self, learning_rate: float) -> None:
        """Let the backward pass do plain SGD at once: no gradient buffers, no optimiser pass.

        Then every step is one forward pass, one backward pass and :meth:`step`. Modules called
        more than once in a forward pass, tied weights, and kinds without a forward of their own
        in :mod:`fedplt.sliced` are stepped in :meth:`step`.
        """
        self._rate = learning_rate
        for trained in self.modules.values():
            trained.rate = learning_rate if trained.is_fusable else None

    def begin_forward(self) -> None:
        for trained in self.modules.values():
            trained.calls = 0

    def step(self) -> None:
        """The part of a fused step that could not be done in the backward pass."""
        with torch.no_grad():
            for leaf in self._parameters:
                if leaf.grad is not None:
                    leaf.sub_(leaf.grad, alpha=self._rate)
                    leaf.grad = None

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained slices, for any optimiser that treats every coordinate alone."""
        return iter(self._parameters)

    @property
    def num_trained(self) -> int:
        return self.assignment.num_trained

    def update(self, num_examples: int = 1) -> ClientUpdate:
        """What changed since the block was entered: the trained slices, in the plan's order."""
        assert self._before is not None
        change = self._values().sub_(self._before)
        if self.assignment.local:
            change = torch.cat([change[start:stop] for start, stop in self._shared_stretches()])
        norm = update_norm(change, self.assignment)
        values = change.numpy(force=True).astype(np.float32, copy=False)
        return ClientUpdate(values, num_examples, norm)

    def _shared_stretches(self) -> list[tuple[int, int]]:
        """Where the values lie that leave the client."""
        stretches, start = [], 0
        for tensor, rows in _by_tensor(self.assignment):
            stop = start + sum(end - begin for begin, end in rows) * tensor.row_size
            if tensor.name not in self.assignment.local:
                stretches.append((start, stop))
            start = stop
        return stretches

    def restore(self) -> None:
        """Put the values back that the slices had when the block was entered."""
        assert self._before is not None
        start = 0
        with torch.no_grad():
            for view in self._views:
                view.copy_(self._before[start : start + view.numel()].view_as(view))
                start += view.numel()

    def _values(self) -> Tensor:
        """All trained slices as one flat copy."""
        if not self._views:
            return torch.empty(0)
        with torch.no_grad():
            return torch.cat([view.reshape(-1) for view in self._views])


@contextmanager
def train_only(
    model: nn.Module, assignment: Assignment, *, keep_old: bool = True
) -> Iterator[Part]:
    """Inside the block, only the assigned slices of the model get gradients and move.

    Everything else keeps its bits. Weight gradients are computed for the trained rows only.
    Optimisers must treat every coordinate alone (SGD, Adam, ...; not LBFGS). After the block the
    model is an ordinary module again and keeps what was trained.

    ``keep_old=False`` saves a copy of the slices where the caller has the old values anyway;
    ``update()`` and ``restore()`` are not available then.
    """
    if model in _being_trained:
        raise CutError("train_only: this model is already inside a train_only block.")
    part = Part(model, assignment, keep_old=keep_old)
    required = [(p, p.requires_grad) for p in model.parameters()]
    handles: list[Any] = [model.register_forward_pre_hook(lambda *_: part.begin_forward())]
    patched: list[nn.Module] = []
    _being_trained.add(model)
    try:
        for parameter, _ in required:
            parameter.requires_grad_(id(parameter) in part.slices)
        for slices in part.slices.values():
            handles.append(slices.parameter.register_post_accumulate_grad_hook(slices.hand_out))
        for name, module in model.named_modules():
            forward = _forward(part, name, module)
            if forward is not None:
                module.forward = forward
                patched.append(module)
        yield part
    finally:
        _being_trained.discard(model)
        for handle in handles:
            handle.remove()
        for module in patched:
            del module.forward
        for parameter, requires in required:
            parameter.requires_grad_(requires)


_being_trained: WeakSet[nn.Module] = WeakSet()


def _forward(part: Part, name: str, module: nn.Module) -> Callable[..., Any] | None:
    """The forward that a module gets inside the block, if it is not its usual one."""
    if "forward" in vars(module):
        return None
    if isinstance(module, nn.Sequential):
        return chained(module, name, part.modules)
    if isinstance(module, nn.MultiheadAttention):
        usual = type(module).forward is nn.MultiheadAttention.forward
        caught = part.caught(module) if usual else {}
        return functools.partial(attention, module, caught) if caught else None
    if name not in part.modules:
        return None
    forward = forward_of(module)
    return functools.partial(forward, module, part.modules[name]) if forward else None


def _by_tensor(assignment: Assignment) -> Iterator[tuple[TensorSpec, Rows]]:
    layers = assignment.layers
    for _, index, tensor in layers.placed:
        rows = tensor.rows(assignment.slices[index], layers[index].num_sublayers)
        if rows:
            yield tensor, tuple(rows)


def _has_statistics(module: nn.Module) -> bool:
    """Running statistics would move in training mode even where nothing is trained."""
    return getattr(module, "running_mean", None) is not None


def _own(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters(recurse=False))
