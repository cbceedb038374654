"""The self-check's reference: a training step of the whole model by torch alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedplt.client.evaluation import seeded
from fedplt.client.train_only import train_only
from fedplt.errors import CutError
from fedplt.kernels import has_running_statistics, keeps_statistics, original
from fedplt.models import call_model
from fedplt.planning import Assignment, SliceAssignment, dotted

LossOf = Callable[[Any], Tensor]
"""Computes a scalar from the model's outputs."""


@dataclass(frozen=True)
class Difference:
    """How one tensor of one client differs from the reference."""

    ratio: float
    tensor: str
    kind: str
    """The kind of its layer, such as ``Linear``; or ``buffer``, ``not trained``."""
    error: float
    """Largest difference, relative to the largest gradient of the model (or to the buffer)."""
    has_moved: bool = False
    """Whether untrained values changed."""
    operations: tuple[str, ...] = ()
    """The torch functions that were called with this tensor."""

    def is_wrong(self, tolerance: float) -> bool:
        return self.has_moved or not self.error <= tolerance

    def text(self, tolerance: float) -> str:
        """The verdict on this tensor."""
        if self.has_moved:
            verdict = "rows that are not trained have moved"
        elif self.is_wrong(tolerance):
            verdict = f"off by {self.error:.2g}"
        else:
            verdict = f"equal to {self.error:.0e}"
        used = f", used by {', '.join(self.operations)}" if self.operations else ""
        return f"{self.tensor} ({self.kind}) at ratio {self.ratio:.3g}: {verdict}{used}"


@dataclass(frozen=True, eq=False)
class ReferenceStep:
    """The gradients of a whole model, and its tensors before and after the forward pass."""

    old: dict[str, Tensor]
    """Parameters and buffers before the forward pass."""
    new: dict[str, Tensor]
    """The tensors after it: running statistics change, and a model may write to its weights."""
    gradients: dict[str, Tensor]
    buffers: frozenset[str]
    statistics: frozenset[str]
    """Buffers of normalization layers: they change in trained rows only."""
    operations: dict[str, tuple[str, ...]]
    """The torch functions that were called with each tensor."""

    @cached_property
    def rate(self) -> float:
        """A learning rate at which the largest change is 1."""
        sizes = (g.abs().nan_to_num(0, 0, 0) for g in self.gradients.values() if g.numel())
        largest = max((float(size.max()) for size in sizes), default=0.0)
        return 1 / largest if largest else 1.0

    def untrained(self, name: str) -> Tensor:
        """The tensor after a step that does not train it."""
        return self.old[name] if name in self.statistics else self.new[name]

    def trained(self, name: str) -> Tensor:
        """The tensor after a step of plain SGD."""
        if name in self.gradients:
            return self.new[name] - self.rate * self.gradients[name]
        return self.old[name] if name.endswith("num_batches_tracked") else self.new[name]

    def scale(self, name: str, wanted: Tensor) -> float:
        """Divisor of the error: 1 for parameters (the largest change), or the buffer's maximum."""
        if name not in self.buffers or not wanted.numel():
            return 1.0
        return float(wanted.abs().nan_to_num().max()) or 1.0


def reference_step(model: nn.Module, inputs: Any, loss: LossOf) -> ReferenceStep:
    """One forward and backward pass without an optimizer; the model may write to parameters."""
    old = {name: tensor.clone() for name, tensor in _tensors(model).items()}
    with_statistics = {n: m for n, m in model.named_modules() if has_running_statistics(m)}
    for module in with_statistics.values():
        for key, buffer in module.named_buffers(recurse=False):
            if key == "num_batches_tracked":
                buffer.zero_()  # train_only counts from zero, too
    operations = Operations(model)
    with seeded("check"):
        try:
            with operations:
                result = loss(call_model(model, inputs))
            result.backward()
        except CutError:
            raise
        except Exception as error:  # the user's model and loss may raise anything
            raise CutError(
                "an ordinary training step of the whole model fails on this batch, without "
                f"anything of fedplt: {type(error).__name__}: {error}"
            ) from error
    return ReferenceStep(
        old,
        _tensors(model),
        {name: p.grad.to_dense() for name, p in model.named_parameters() if p.grad is not None},
        frozenset(name for name, _ in model.named_buffers()),
        frozenset(_kept_statistics(with_statistics, operations)),
        operations.by_name,
    )


def _kept_statistics(modules: dict[str, nn.Module], operations: Operations) -> Iterator[str]:
    """Buffers whose untrained rows must not change; the model's own code may write to others."""
    for owner, module in modules.items():
        for key, _ in module.named_buffers(recurse=False):
            name = dotted(owner, key)
            done = operations.by_name.get(name, ())
            counted = key == "num_batches_tracked"
            if keeps_statistics(module) or counted or any(word.endswith("_norm") for word in done):
                yield name


def partial_step(
    model: nn.Module, inputs: Any, loss: LossOf, assignment: SliceAssignment, rate: float
) -> dict[str, Tensor]:
    """The model's tensors after a step of partial training."""
    with seeded("check"), train_only(model, assignment, keep_old=False) as part:
        part.fuse_sgd(rate)
        part.backward(loss(call_model(model, inputs)))
        part.step()
    return _tensors(model)


def differences(
    reference: ReferenceStep, after: dict[str, Tensor], assignment: Assignment
) -> list[Difference]:
    """Compare every parameter and buffer after a partial step at the reference's rate."""
    planned = {placed.tensor.name: placed for placed in assignment.on_client.layers.placed}
    rows = {tensor.name: found for tensor, found in assignment.on_client.trained_rows}
    notes = {note.name: note.kind for note in assignment.layers.about}
    result = []
    for name, new in reference.new.items():
        kind = notes.get(name, "buffer" if name in reference.buffers else "not trained")
        mask = torch.zeros(new.shape, dtype=torch.bool, device=new.device)
        if name in planned:
            layer = assignment.layers[planned[name].layer_index].name
            kind = notes.get(layer, layer)
            is_local = name in reference.statistics and name in assignment.local
            tensor = planned[name].tensor
            # Statistics that stay on a client change in all channels.
            for start, stop in ((0, tensor.num_rows),) if is_local else rows.get(name, ()):
                (mask.narrow(tensor.axis, start, stop - start) if mask.ndim else mask).fill_(True)
        wanted = torch.where(mask, reference.trained(name), reference.untrained(name))
        got = after.get(name, new.new_empty(0))
        error, moved = float("inf"), False
        if got.shape == wanted.shape:
            gaps = _gaps(got, wanted)
            error = (float(gaps.max()) if gaps.numel() else 0.0) / reference.scale(name, wanted)
            moved = error != 0 and bool((gaps > 0).logical_and_(~mask).any())
        done = reference.operations.get(name, ())
        result.append(Difference(assignment.ratio, name, kind, error, moved, done))
    return result


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, without their gradients."""
    found = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in found}


def _gaps(one: Tensor, other: Tensor) -> Tensor:
    """Absolute differences; NaN equals NaN."""
    if not (one.is_floating_point() or one.is_complex()):
        one, other = one.double(), other.double()
    gaps = (one - other).abs()
    if not gaps.numel() or math.isfinite(float(gaps.max())):
        return gaps  # the code below handles non-finite values, and is slow on large models
    same = (one == other) | (one.isnan() & other.isnan())
    return gaps.masked_fill(same, 0)


class Operations(TorchFunctionMode):
    """Records which torch functions are called with the tensors of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        tensors = [*model.named_parameters(), *model.named_buffers()]
        self._names = {id(tensor): name for name, tensor in tensors}
        self.by_name: dict[str, tuple[str, ...]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = original(func)(*args, **(kwargs or {}))
        if isinstance(result, (Tensor, tuple)):  # others only read metadata
            self._note(func, [*args, *(kwargs or {}).values()])
        return result

    def _note(self, func: Any, values: Any) -> None:
        for value in values:
            if isinstance(value, (list, tuple)):
                self._note(func, value)
            elif id(value) in self._names:
                name, word = self._names[id(value)], str(getattr(func, "__name__", func))
                if word == "__get__":  # an attribute, such as .T
                    word = func.__self__.__name__
                known = self.by_name.get(name, ())
                if word not in (*known, "data", "grad", "shape", "size"):
                    self.by_name[name] = (*known, word)
