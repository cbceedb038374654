"""Train a slice of a model in any training loop.

with fedplt.train_only(model, plan.client(3)) as part:
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    ...                                  # the usual loop
update = part.update(num_examples=600)   # what changed, nothing else
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedplt.chain import chained
from fedplt.errors import CutError
from fedplt.layers import TensorSpec
from fedplt.plan import Assignment
from fedplt.sliced import forward_of
from fedplt.trained import Rows, TrainedRows
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
        self.modules: dict[str, TrainedRows] = {}
        self._rate = 0.0
        for tensor, rows in _by_tensor(assignment):
            self._take(model, tensor, rows)
        self._connect()
        self._before = self._values() if keep_old else None

    def _take(self, model: nn.Module, tensor: TensorSpec, rows: Rows) -> None:
        name, _, key = tensor.name.rpartition(".")
        module = model.get_submodule(name)
        whole = getattr(module, key).detach()
        if tuple(whole.shape) != tensor.shape:
            raise CutError(
                f"{tensor.name} has shape {tuple(whole.shape)} in this model and {tensor.shape} in "
                "the plan: the plan was made for another model."
            )
        views = [whole.narrow(tensor.axis, start, stop - start) for start, stop in rows]
        self._views += views
        trained = self.modules.setdefault(name, TrainedRows(rows))
        if not tensor.is_buffer:
            trained.tensors[key], trained.views[key] = whole, views
            trained.leaves[key] = [nn.Parameter(view) for view in views]
            self._parameters += trained.leaves[key]

    def _connect(self) -> None:
        """Tell modules whose input gradients are needed for a few columns only."""
        for flow in self.assignment.layers.flow:
            consumer, feeder = self.modules.get(flow.name), self.modules.get(flow.feeder or "")
            if consumer is None or feeder is None or flow.feeder is None:
                continue
            norms = [self.modules.get(name) for name in flow.norms]
            if all(norm is not None and norm.rows == feeder.rows for norm in norms):
                consumer.feeder, consumer.columns_per_channel = feeder, flow.columns

    def fuse_sgd(self, learning_rate: float) -> None:
        """Let the backward pass do plain SGD at once: no gradient buffers, no optimiser pass.

        Then every step is one forward pass, one backward pass and :meth:`step`. Modules called
        more than once in a forward pass, and norms, are stepped in :meth:`step`.
        """
        self._rate = learning_rate
        for trained in self.modules.values():
            trained.rate = learning_rate

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
        return ClientUpdate(change.numpy(force=True), num_examples, norm)

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
    part = Part(model, assignment, keep_old=keep_old)
    required = [(p, p.requires_grad) for p in model.parameters()]
    patched: list[nn.Module] = []
    counting = model.register_forward_pre_hook(lambda *_: part.begin_forward())
    try:
        for parameter, _ in required:
            parameter.requires_grad_(False)
        for name, module in model.named_modules():
            if isinstance(module, nn.Sequential) and "forward" not in vars(module):
                chain = chained(module, name, part.modules)
                if chain is not None:
                    module.forward = chain  # type: ignore[method-assign]
                    patched.append(module)
                continue
            trained = part.modules.get(name)
            if trained is None and not _has_statistics(module):
                continue
            forward = forward_of(module)
            if "forward" in vars(module):
                raise CutError(f"module {name!r} has a replaced forward: it cannot be cut.")
            assert forward is not None, f"{name} was cut but has no sliced forward"
            bound = functools.partial(forward, module, trained or TrainedRows())
            module.forward = bound
            patched.append(module)
        yield part
    finally:
        counting.remove()
        for module in patched:
            del module.forward
        for parameter, requires in required:
            parameter.requires_grad_(requires)


def _by_tensor(assignment: Assignment) -> Iterator[tuple[TensorSpec, Rows]]:
    layers = assignment.layers
    for _, index, tensor in layers.placed:
        rows = tensor.rows(assignment.slices[index], layers[index].num_sublayers)
        if rows:
            yield tensor, tuple(rows)


def _has_statistics(module: nn.Module) -> bool:
    """Running statistics would move in training mode even where nothing is trained."""
    return getattr(module, "running_mean", None) is not None
