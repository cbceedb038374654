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

from fedplt.errors import CutError
from fedplt.layers import TensorSpec
from fedplt.plan import Assignment
from fedplt.sliced import Rows, TrainedRows, forward_of
from fedplt.update import ClientUpdate


class Part:
    """The trained slices of a model: parameters to optimise, and what became of them."""

    def __init__(self, model: nn.Module, assignment: Assignment) -> None:
        self.assignment = assignment
        self._views: list[Tensor] = []  # every trained slice, in the order of the update
        self._is_buffer: list[bool] = []
        self._parameters: list[nn.Parameter] = []
        self.modules: dict[str, TrainedRows] = {}
        for tensor, rows in _by_tensor(assignment):
            self._take(model, tensor, rows)
        self._before = self._values()

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
        self._is_buffer += [tensor.is_buffer] * len(views)
        trained = self.modules.setdefault(name, TrainedRows(rows, {}))
        if not tensor.is_buffer:
            leaves = [nn.Parameter(view) for view in views]
            trained.leaves[key] = leaves
            self._parameters += leaves

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained slices, for any optimiser that treats every coordinate alone."""
        return iter(self._parameters)

    @property
    def num_trained(self) -> int:
        return self.assignment.num_trained

    def update(self, num_examples: int = 1) -> ClientUpdate:
        """What changed since the block was entered: the trained slices, in the plan's order."""
        after, norm = self._values(), 0.0
        torch.sub(after, self._before, out=after)
        start = 0
        for view, is_buffer in zip(self._views, self._is_buffer, strict=True):
            if not is_buffer:
                norm += float(after[start : start + view.numel()].square().sum())
            start += view.numel()
        return ClientUpdate(after.numpy(force=True), num_examples, norm**0.5)

    def restore(self) -> None:
        """Put the values back that the slices had when the block was entered."""
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
def train_only(model: nn.Module, assignment: Assignment) -> Iterator[Part]:
    """Inside the block, only the assigned slices of the model get gradients and move.

    Everything else keeps its bits. Weight gradients are computed for the trained rows only.
    Optimisers must treat every coordinate alone (SGD, Adam, ...; not LBFGS). After the block the
    model is an ordinary module again and keeps what was trained.
    """
    part = Part(model, assignment)
    required = [(p, p.requires_grad) for p in model.parameters()]
    patched: list[nn.Module] = []
    try:
        for parameter, _ in required:
            parameter.requires_grad_(False)
        for name, module in model.named_modules():
            trained = part.modules.get(name)
            if trained is None and not _has_statistics(module):
                continue
            forward = forward_of(module)
            if "forward" in vars(module):
                raise CutError(f"module {name!r} has a replaced forward: it cannot be cut.")
            assert forward is not None, f"{name} was cut but has no sliced forward"
            bound = functools.partial(forward, module, trained or TrainedRows((), {}))
            module.forward = bound
            patched.append(module)
        yield part
    finally:
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
