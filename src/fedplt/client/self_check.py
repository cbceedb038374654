"""Is partial training right for this model? One step of it against full gradients times mask.

    print(fedplt.check(model, example, loss))

For one client of each kind (at most four), a step on the user's own batch is compared tensor by
tensor, in float64 where the model allows, with the gradients of the whole model; and rows of
planned tensors that are not trained must keep their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.client.train_only import train_only
from fedplt.cutting import cut
from fedplt.errors import CutError
from fedplt.kernels import call_model, copy_model
from fedplt.planning import Assignment, Plan, make_plan

RATIOS = (1.0, 0.3, 0.1)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}
"""Of the largest gradient; rounding is far below."""
LossOf = Callable[[Any], Tensor]
"""A scalar from the model's outputs."""


@dataclass(frozen=True)
class Difference:
    """What one tensor of one client came to."""

    ratio: float
    tensor: str
    kind: str
    error: float
    """Largest difference, relative to the largest gradient of the model."""
    has_moved: bool = False
    """Rows changed that are not trained."""


@dataclass(frozen=True)
class CheckReport:
    """What was compared, and how it came out."""

    dtype: torch.dtype
    differences: tuple[Difference, ...]
    skipped: str = ""
    """Why nothing was compared, where nothing was."""

    @property
    def worst(self) -> float:
        return max((entry.error for entry in self.differences), default=0.0)

    @property
    def wrong(self) -> tuple[Difference, ...]:
        limit = TOLERANCE[self.dtype]
        return tuple(e for e in self.differences if e.has_moved or not e.error <= limit)

    @property
    def is_right(self) -> bool:
        return not self.wrong and not self.skipped

    def __str__(self) -> str:
        if self.skipped:
            return f"not checked: {self.skipped}"
        ratios = sorted({entry.ratio for entry in self.differences}, reverse=True)
        kind = str(self.dtype).removeprefix("torch.")
        text = (
            f"a step of partial training against full gradients times mask ({kind}, "
            f"{len({e.tensor for e in self.differences})} tensors, ratios "
            f"{', '.join(f'{ratio:.3g}' for ratio in ratios)}): "
        )
        if not self.wrong:
            return text + f"equal to {self.worst:.0e}"
        lines = [
            f"  {e.tensor} ({e.kind}) at ratio {e.ratio:.3g}: "
            + ("rows that are not trained have moved" if e.has_moved else f"off by {e.error:.2g}")
            for e in self.wrong[:5]
        ]
        return text + "WRONG\n" + "\n".join(lines)


def check(
    model: nn.Module,
    example: Any,
    loss: LossOf | None = None,
    *,
    ratios: Sequence[float] = RATIOS,
    plan: Plan | None = None,
) -> CheckReport:
    """Compare a step of partial training with full gradients times mask; the model is not changed.

    Args:
        model: any torch module that :func:`fedplt.cut` can cut.
        example: a batch of inputs, as the model takes them.
        loss: a scalar from the model's outputs (default: a fixed weighted sum of them).
        ratios: of the clients to compare, where no plan is given.
        plan: a plan for this model; one client of each kind is compared.
    """
    if plan is None:
        plan = make_plan(cut(model, example), list(ratios))
    if not plan.clients_hold_everything:
        return CheckReport(torch.float64, (), "clients hold smaller models of their own")
    loss = loss or _weighted_sum
    try:
        prepared, inputs, dtype = _in_float64(model, example, loss)
    except Exception as error:  # the user's model may raise anything when it is copied
        return CheckReport(torch.float64, (), f"the model cannot be copied ({error})")
    found: list[Difference] = []
    for assignment in _kinds(plan):
        compared = _compare(prepared, inputs, loss, assignment)
        if compared is None:
            reason = "a copy of the model computes with the original's tensors"
            return CheckReport(dtype, (), reason)
        found += compared
    return CheckReport(dtype, tuple(found))


def refuse_wrong(report: CheckReport) -> None:
    """Raise :class:`CutError` where partial training would be wrong."""
    if report.wrong:
        name = report.wrong[0].tensor
        raise CutError(
            f"partial training is not right for this model, so nothing was started. {report}\n"
            f"Leave the layer out (never = [{name!r}]), join it with its neighbors (groups), or "
            "report this model. If its forward pass is random in a way that torch.manual_seed does "
            "not fix, the comparison itself fails: switch it off with engine.check = false."
        )


def _kinds(plan: Plan) -> list[Assignment]:
    """One client of every kind, by what it costs; a few are enough."""
    found: dict[Any, Assignment] = {}
    for client in range(min(plan.num_clients, 1000)):
        if len(found) == 4:
            break
        assignment = plan.assignment(client)
        found.setdefault(assignment.cost_key, assignment)
    return list(found.values())


def _in_float64(model: nn.Module, example: Any, loss: LossOf) -> tuple[nn.Module, Any, torch.dtype]:
    """A copy of the model in float64, if it and the loss run so; else as it is."""
    doubled, inputs = copy_model(model).double(), _map(example, _double)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            loss(call_model(copy_model(doubled).train(), inputs))
    except Exception:  # it insists on its own type
        return copy_model(model), example, torch.float32
    return doubled, inputs, torch.float64


def _compare(
    model: nn.Module, inputs: Any, loss: LossOf, assignment: Assignment
) -> list[Difference] | None:
    full, ours = copy_model(model).train(), copy_model(model).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _train_whole(full, inputs, loss)
        torch.manual_seed(0)
        with train_only(ours, assignment, keep_old=False) as part:
            part.fuse_sgd(1.0)
            part.backward(loss(call_model(ours, inputs)))
            part.step()
    # A model may write to its own weights: they are compared with what it made of them.
    before, after = dict(full.named_parameters()), dict(ours.named_parameters())
    gradients = {n: p.grad for n, p in full.named_parameters() if p.grad is not None}
    gradients = {n: g if g.layout is torch.strided else g.to_dense() for n, g in gradients.items()}
    if not gradients:
        return None
    scale = max((float(g.abs().max()) for g in gradients.values()), default=0.0) or 1.0
    notes = {note.name: note.kind for note in assignment.layers.about}
    rows = {tensor.name: (tensor, found) for tensor, found in assignment.on_client.trained_rows}
    result = []
    for placed in assignment.layers.placed:
        tensor = placed.tensor
        if tensor.is_buffer:
            continue
        wanted = torch.zeros_like(before[tensor.name])
        trained = wanted.movedim(tensor.axis, 0) if tensor.axis else wanted
        mask = torch.zeros(tensor.num_rows, dtype=torch.bool)
        for start, stop in rows.get(tensor.name, (tensor, ()))[1]:
            mask[start:stop] = True
        if tensor.name in gradients:
            whole = gradients[tensor.name]
            moved = whole.movedim(tensor.axis, 0) if tensor.axis else whole
            if tensor.shape:
                trained[mask] = moved[mask]
            elif mask.any():
                wanted = moved
        change = (before[tensor.name] - after[tensor.name]).detach()
        error = float((change - wanted).abs().max()) / scale
        first = change.movedim(tensor.axis, 0) if tensor.axis else change
        frozen = bool(tensor.shape) and bool(first[~mask].any())
        layer = assignment.layers[placed.layer_index].name
        result.append(
            Difference(assignment.ratio, tensor.name, notes.get(layer, layer), error, frozen)
        )
    return result


def _train_whole(model: nn.Module, inputs: Any, loss: LossOf) -> None:
    try:
        loss(call_model(model, inputs)).backward()
    except Exception as error:  # the user's model and loss may raise anything
        raise CutError(
            "an ordinary training step of the whole model fails on this batch, without anything "
            f"of fedplt: {type(error).__name__}: {error}"
        ) from error


def _weighted_sum(outputs: Any) -> Tensor:
    """A loss that every output takes part in, each in another way."""
    tensors: list[Tensor] = []
    _map(outputs, lambda tensor: tensors.append(tensor) if tensor.is_floating_point() else None)
    total = torch.zeros(())
    for tensor in tensors:
        weights = torch.linspace(0.5, 1.5, max(1, tensor.numel()), dtype=tensor.dtype)
        flat = tensor.reshape(-1)
        total = total + (weights[: flat.numel()].to(flat) * (flat + flat * flat)).mean()
    return total


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _map(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map(item, change) for item in value]
    return value
