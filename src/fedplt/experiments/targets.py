"""Compare contestants at equal accuracy, equal communication or equal computation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedplt.comparison import MEASURES, cost_to_reach, score_within
from fedplt.experiments.selection import Selection
from fedplt.experiments.statistics import Interval, mean_interval
from fedplt.federation import History

ACCURACY, BYTES, UPLOAD = "accuracy", "bytes", "bytes up"
PAPER_FLOPS, EXACT_FLOPS = "paper FLOPs", "exact FLOPs"
SCALES = {ACCURACY: 0.01, UPLOAD: 1e9, BYTES: 1e9, PAPER_FLOPS: 1e12, EXACT_FLOPS: 1e12}
UNITS = {ACCURACY: "%", UPLOAD: "GB", BYTES: "GB", PAPER_FLOPS: "TFLOP", EXACT_FLOPS: "TFLOP"}


@dataclass(frozen=True)
class Target:
    """An accuracy (a fraction) or a cost (bytes, FLOPs) at which runs are compared."""

    measure: str
    value: float
    from_paper: bool

    @property
    def text(self) -> str:
        """
        >>> Target("accuracy", 0.74, True).text, Target("bytes", 43.75e9, False).text
        ('74 %', '43.75 GB (ours)')
        """
        digits = 0 if self.measure == ACCURACY else 2
        number = f"{self.value / SCALES[self.measure]:.{digits}f} {UNITS[self.measure]}"
        return number if self.from_paper else f"{number} (ours)"


def accuracy_target(
    selection: Selection, names: Sequence[str], wanted: float | None = None
) -> Target | None:
    """The wanted accuracy if all runs of these contestants reach it, else one that they reach.

    The latter is the smallest final accuracy, rounded down to a whole percentage.
    """
    runs = _runs(selection, names)
    if not runs:
        return None
    if wanted is not None and all(cost_to_reach(run, BYTES, wanted) is not None for run in runs):
        return Target(ACCURACY, wanted, True)
    smallest = min(run.final_score(selection.last) for run in runs)
    return Target(ACCURACY, math.floor(100 * smallest) / 100, False)


def cost_target(
    selection: Selection, names: Sequence[str], measure: str, wanted: float | None = None
) -> Target | None:
    """The wanted cost if all runs of these contestants spend it, else what the cheapest spends."""
    runs = _runs(selection, names)
    if not runs:
        return None
    if wanted and all(score_within(run, measure, wanted) is not None for run in runs):
        return Target(measure, wanted, True)
    return Target(measure, min(MEASURES[measure](run.evaluated[-1].total) for run in runs), False)


def _runs(selection: Selection, names: Sequence[str]) -> list[History]:
    entries = [selection.entries[name] for name in names if name in selection.entries]
    runs = [run for entry in entries for run in entry.histories.values() if run.evaluated]
    return runs if all(entry.histories for entry in entries) else []


def value_at(run: History, target: Target, measure: str) -> float | None:
    """Accuracy or cost of a run when it reaches a target; None if it never does.

    Costs to an accuracy are those of the first evaluated round that reaches it; all other values
    are interpolated between evaluated rounds.
    """
    if target.measure == ACCURACY:
        return cost_to_reach(run, measure, target.value)
    reached = score_within(run, target.measure, target.value)
    if measure == ACCURACY or reached is None:
        return reached
    spent, wanted = (
        [MEASURES[name](record.total) for record in run.evaluated]
        for name in (target.measure, measure)
    )
    return float(np.interp(target.value, spent, wanted))


def gain(
    selection: Selection, first: str, second: str, target: Target, measure: str
) -> Interval | None:
    """What the first gains over the second at a target, paired by seed.

    Accuracy: first minus second, in points. Costs: second minus first, in GB or TFLOP. None if
    nothing can be compared, or a run does not reach the target.
    """
    if measure == target.measure:
        return None
    differences = []
    for seed in selection.pairs(first, second):
        ours, theirs = (
            value_at(selection.entries[name].histories[seed], target, measure)
            for name in (first, second)
        )
        if ours is None or theirs is None:
            return None
        sign = 1 if measure == ACCURACY else -1
        differences.append(sign * (ours - theirs) / SCALES[measure])
    return mean_interval(differences) if differences else None
