"""Compare one step of partial training with full gradients times mask.

    print(fedplt.check(model, example, loss))

For one client of each kind, a step on the user's batch is compared with the gradients of the whole
model, tensor by tensor, in float64 where the model allows. Untrained values must keep their bits,
and buffers must change as in full training. A sub-model is compared with the whole model whose
other units are set to zero (:mod:`fedplt.client.self_check.submodels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedplt.client.self_check.reference_step import (
    Difference,
    LossOf,
    ReferenceStep,
    differences,
    partial_step,
    reference_step,
)
from fedplt.client.self_check.submodels import SubmodelCheck
from fedplt.cutting import cut
from fedplt.data import map_tensors, tensors_in
from fedplt.errors import CutError
from fedplt.models import call_model, copy_model
from fedplt.planning import (
    DEFAULT_RECIPE,
    Assignment,
    LocalRecipe,
    Plan,
    SliceAssignment,
    SubmodelAssignment,
    make_plan,
)

RATIOS = (1.0, 0.3, 0.1)
MAX_KINDS = 8
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}
"""Allowed difference, relative to the largest gradient; rounding errors are far smaller."""
Verdict = Literal["right", "wrong", "not decided"]


@dataclass(frozen=True)
class CheckReport:
    """The differences of all compared clients, and the verdict."""

    dtype: torch.dtype
    differences: tuple[Difference, ...]
    undecided: tuple[str, ...] = ()
    """Reasons why something could not be compared."""
    left_out: int = 0
    """Number of kinds of clients that were not compared."""
    has_submodels: bool = False
    """Whether some clients hold sub-models, compared with a partly zeroed whole model."""

    def __repr__(self) -> str:
        number = len({entry.tensor for entry in self.differences})
        return (
            f"<CheckReport: {self.verdict}; {number} tensors, largest difference {self.worst:.0e}>"
        )

    @property
    def worst(self) -> float:
        return max((entry.error for entry in self.differences), default=0.0)

    @property
    def wrong(self) -> tuple[Difference, ...]:
        limit = TOLERANCE[self.dtype]
        return tuple(entry for entry in self.differences if entry.is_wrong(limit))

    @property
    def verdict(self) -> Verdict:
        if self.wrong:
            return "wrong"
        return "not decided" if self.undecided or not self.differences else "right"

    @property
    def is_right(self) -> bool:
        return self.verdict == "right"

    @property
    def tensors(self) -> str:
        """A line per tensor, for the client where it differs most."""
        worst: dict[str, Difference] = {}
        for entry in self.differences:
            known = worst.setdefault(entry.tensor, entry)
            if (entry.has_moved, entry.error) > (known.has_moved, known.error):
                worst[entry.tensor] = entry
        limit = TOLERANCE[self.dtype]
        return "\n".join(f"  {entry.text(limit)}" for entry in worst.values())

    def __str__(self) -> str:
        reasons = "".join(f"\nnot decided: {reason}" for reason in self.undecided)
        if not self.differences:
            return reasons.strip() or "not decided: nothing is trained"
        ratios = sorted({entry.ratio for entry in self.differences}, reverse=True)
        kind = str(self.dtype).removeprefix("torch.")
        zeros = ", or the whole model with zeros for what is not held" if self.has_submodels else ""
        text = (
            f"a step of partial training against full gradients times mask{zeros} ({kind}, "
            f"{len({e.tensor for e in self.differences})} tensors, ratios "
            f"{', '.join(f'{ratio:.3g}' for ratio in ratios)}"
        )
        if self.left_out:
            text += f"; {self.left_out} more kinds of clients were left out"
        if not self.wrong:
            return text + f"): equal to {self.worst:.0e}" + reasons
        limit = TOLERANCE[self.dtype]
        lines = "".join(f"\n  {entry.text(limit)}" for entry in self.wrong[:5])
        return text + "): WRONG" + lines + reasons


def refuse_wrong(report: CheckReport) -> None:
    """Raise :class:`CutError` if partial training would be wrong."""
    if report.wrong:
        name = report.wrong[0].tensor
        raise CutError(
            f"partial training is not right for this model, so nothing was started. {report}\n"
            f"Leave the layer out (never = [{name!r}]), join it with its neighbors (groups), or "
            "report this model. If its forward pass draws at random from generators other than "
            "those of torch, numpy.random and random, the comparison itself fails."
        )


def check(
    model: nn.Module,
    example: Any,
    loss: LossOf | None = None,
    *,
    ratios: Sequence[float] = RATIOS,
    plan: Plan | None = None,
    recipe: LocalRecipe = DEFAULT_RECIPE,
) -> CheckReport:
    """Compare a step of partial training with full gradients times mask; the model is not changed.

    Args:
        model: any torch module that :func:`fedplt.cut` can cut.
        example: a batch of inputs.
        loss: a scalar from the model's outputs (default: a fixed weighted sum of them).
        ratios: ratios of the clients to compare, if there is no plan.
        plan: a plan for this model; one client of each of at most eight kinds is compared.
        recipe: the plan's recipe; its scaler divides the activations of sub-models.
    """
    if plan is None:
        plan = make_plan(cut(model, example), list(ratios))
    clients, left_out = _kinds(plan)
    assignments = [plan.assignment(client) for client in clients]
    report = check_assignments(model, example, loss or _weighted_sum, assignments, recipe)
    return replace(report, left_out=left_out)


def check_assignments(
    model: nn.Module,
    example: Any,
    loss: LossOf,
    assignments: Sequence[Assignment],
    recipe: LocalRecipe,
) -> CheckReport:
    """:func:`check` for these assignments, without a plan."""
    try:
        prepared, inputs, dtype = _in_float64(model, example, loss)
    except Exception as error:  # the user's model may raise anything when it is copied
        return CheckReport(torch.float64, (), (f"the model cannot be copied ({error}).",))
    comparison = _Comparison(prepared, inputs, loss, recipe)
    for assignment in assignments:
        assignment.build(comparison)
    return CheckReport(
        dtype,
        tuple(comparison.found),
        tuple(dict.fromkeys(comparison.undecided)),
        has_submodels=comparison.has_submodels,
    )


def _kinds(plan: Plan) -> tuple[list[int], int]:
    """One client of each kind, in descending order of ratio, and the number of kinds left out.

    At most ``MAX_KINDS``, spread over all ratios.
    """
    kinds = sorted(plan.one_of_each_kind.tolist(), key=lambda client: -plan.ratios[client])
    if len(kinds) <= MAX_KINDS:
        return kinds, 0
    places = np.linspace(0, len(kinds) - 1, MAX_KINDS).round().astype(int)
    return [kinds[place] for place in places], len(kinds) - MAX_KINDS


def _in_float64(model: nn.Module, example: Any, loss: LossOf) -> tuple[nn.Module, Any, torch.dtype]:
    """A copy of the model in float64, if model and loss support it; else in the model's type."""
    inputs = map_tensors(example, lambda t: t.double() if t.is_floating_point() else t)
    doubled = copy_model(model).double()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            loss(call_model(copy_model(doubled).train(), inputs))
    except Exception:  # it needs its own type
        return copy_model(model), example, torch.float32
    return doubled, inputs, torch.float64


class _Comparison:
    """Builds the model of each client, trains it, and compares."""

    def __init__(self, model: nn.Module, inputs: Any, loss: LossOf, recipe: LocalRecipe) -> None:
        self.model, self.inputs, self.loss, self.recipe = model.train(), inputs, loss, recipe
        self.found: list[Difference] = []
        self.undecided: list[str] = []
        self.has_submodels = False

    @cached_property
    def _reference(self) -> ReferenceStep:
        """The reference for all clients that hold the whole model."""
        return reference_step(copy_model(self.model), self.inputs, self.loss)

    @cached_property
    def _submodels(self) -> SubmodelCheck:
        return SubmodelCheck(self.model, self.inputs, self.loss, self.recipe)

    def whole(self, assignment: SliceAssignment) -> None:
        if not self._reference.gradients:
            self.undecided.append("a copy of the model computes with the original's tensors.")
            return
        ours = copy_model(self.model)
        after = partial_step(ours, self.inputs, self.loss, assignment, self._reference.rate)
        self.found += differences(self._reference, after, assignment)

    def smaller(self, assignment: SubmodelAssignment) -> None:
        found, reason = self._submodels.compare(assignment)
        self.found += found
        self.undecided += [reason] if reason else []
        self.has_submodels |= not reason


def _weighted_sum(outputs: Any) -> Tensor:
    """A loss that weights every output differently."""
    total = torch.zeros(())
    for tensor in tensors_in(outputs):
        if not tensor.is_floating_point():
            continue
        weights = torch.linspace(0.5, 1.5, max(1, tensor.numel()), dtype=tensor.dtype)
        flat = tensor.reshape(-1)
        total = total + (weights[: flat.numel()].to(flat) * (flat + flat * flat)).mean()
    return total
