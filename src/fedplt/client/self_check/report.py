"""What the self-check found: a verdict for every tensor of every kind of client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from fedplt.errors import CutError

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}
"""Of the largest gradient; rounding is far below."""
Verdict = Literal["right", "wrong", "not decided"]


@dataclass(frozen=True)
class Difference:
    """What one tensor of one client came to."""

    ratio: float
    tensor: str
    kind: str
    """Of its layer, such as ``Linear``; or what else it is."""
    error: float
    """Largest difference, relative to the largest gradient of the model (or to the buffer)."""
    has_moved: bool = False
    """Values changed that are not trained."""
    operations: tuple[str, ...] = ()
    """The functions of torch that were called with it."""

    def is_wrong(self, tolerance: float) -> bool:
        return self.has_moved or not self.error <= tolerance

    def words(self, tolerance: float) -> str:
        """The verdict on this tensor."""
        if self.has_moved:
            verdict = "rows that are not trained have moved"
        elif self.is_wrong(tolerance):
            verdict = f"off by {self.error:.2g}"
        else:
            verdict = f"equal to {self.error:.0e}"
        used = f", used by {', '.join(self.operations)}" if self.operations else ""
        return f"{self.tensor} ({self.kind}) at ratio {self.ratio:.3g}: {verdict}{used}"


@dataclass(frozen=True)
class CheckReport:
    """What was compared, and how it came out."""

    dtype: torch.dtype
    differences: tuple[Difference, ...]
    undecided: tuple[str, ...] = ()
    """Why something was not compared, where that is so."""
    left_out: int = 0
    """Kinds of clients beyond those that were compared."""
    has_submodels: bool = False
    """Some clients were compared with the whole model, zero where they hold nothing."""

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
        """A line for every tensor, of the client where it differs most."""
        worst: dict[str, Difference] = {}
        for entry in self.differences:
            known = worst.setdefault(entry.tensor, entry)
            if (entry.has_moved, entry.error) > (known.has_moved, known.error):
                worst[entry.tensor] = entry
        limit = TOLERANCE[self.dtype]
        return "\n".join(f"  {entry.words(limit)}" for entry in worst.values())

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
        lines = "".join(f"\n  {entry.words(limit)}" for entry in self.wrong[:5])
        return text + "): WRONG" + lines + reasons


def refuse_wrong(report: CheckReport) -> None:
    """Raise :class:`CutError` where partial training would be wrong."""
    if report.wrong:
        name = report.wrong[0].tensor
        raise CutError(
            f"partial training is not right for this model, so nothing was started. {report}\n"
            f"Leave the layer out (never = [{name!r}]), join it with its neighbors (groups), or "
            "report this model. If its forward pass draws at random from generators other than "
            "those of torch, numpy.random and random, the comparison itself fails."
        )
