"""Compare contestants at equal accuracy, equal communication or equal computation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fedplt.comparison import MEASURES, Interval, cost_to_reach, mean_interval, score_within
from fedplt.federation import History
from fedplt.text import Table
from reproduction.paper_numbers import BUDGETS, GAINS, Gains
from reproduction.selection import Entry, Selection
from reproduction.settings import Block
from reproduction.tables import (
    NONE,
    basis,
    interval_cell,
    name_cell,
    seeds_text,
    spread_cell,
)

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


def crossing_note(selection: Selection, first: str) -> list[str]:
    """Up to which communication a contestant is ahead of FedAvg, in whole GB.

    Both means are over the seeds that can be paired: other seeds have other splits.
    """
    seeds = selection.pairs(first, "fedavg")
    if not seeds:
        return []
    ahead = {}
    for budget in range(1, 1000):
        means = []
        for name in (first, "fedavg"):
            runs = [selection.entries[name].histories[seed] for seed in seeds]
            found = [score_within(run, BYTES, budget * 1e9) for run in runs]
            means.append(fmean(x for x in found if x is not None) if None not in found else None)
        ours, theirs = means
        if ours is not None and theirs is not None:
            ahead[budget] = ours >= theirs
    which = seeds_text(seeds)
    if len(set(ahead.values())) < 2:
        words = "ahead of" if any(ahead.values()) else "behind"
        end = f"at all budgets up to {max(ahead)} GB" if ahead else ""
        return [f"FedPLT is {words} FedAvg {end} of communication ({which})."] if ahead else []
    until = next(budget for budget, better in ahead.items() if not better) - 1
    since = max(budget for budget, better in ahead.items() if better) + 1
    return [f"By communication FedPLT is ahead of FedAvg up to {until} GB, and behind from {since} "
            f"GB on ({which})."]  # fmt: skip


COMPUTATION = {"cifar-resnet": EXACT_FLOPS}
"""The measure to compare the paper's computation with; default: its own formula."""
_COLUMNS = (ACCURACY, BYTES, UPLOAD, PAPER_FLOPS, EXACT_FLOPS)
_OURS = (
    "(ours): the paper has no target here, or one that our runs do not reach (fewer rounds, or "
    "less spent); this one is reached by all that it is taken from."
)
_FLOPS = "FLOPs are given by the paper's formula and as really computed (docs/errata.md, 2)."


def gain_targets(block: Block, selection: Selection) -> list[tuple[str, Target | None, Gains]]:
    """Experiment 1: equal accuracy, equal communication, equal computation (both counts)."""
    names = ("balanced", "fedavg")
    paper_accuracy, paper_bytes, paper_flops = GAINS[block.pair]
    counted = COMPUTATION.get(block.pair, PAPER_FLOPS)
    rows = [
        (
            "equal accuracy",
            accuracy_target(selection, names, paper_accuracy.target),
            paper_accuracy,
        ),
        (
            "equal communication",
            cost_target(selection, names, BYTES, paper_bytes.target),
            paper_bytes,
        ),
    ]
    for measure, words in ((PAPER_FLOPS, "paper's formula"), (EXACT_FLOPS, "exact")):
        paper = paper_flops if measure == counted else Gains(0.0)
        target = cost_target(selection, names, measure, paper.target)
        rows.append((f"equal computation, {words}", target, paper))
    return rows


def gains_table(block: Block, selection: Selection) -> Table:
    """What FedPLT (most balanced) gains over FedAvg: tab:effective_FedPLT."""
    rows = []
    for goal, target, paper in gain_targets(block, selection):
        if target is None:
            continue
        found = (gain(selection, "balanced", "fedavg", target, column) for column in _COLUMNS)
        printed = (paper.accuracy, paper.communication, paper.computation)
        rows.append(
            (
                goal,
                target.text,
                *map(interval_cell, found),
                " / ".join(NONE if value is None else f"{value:+.2f}" for value in printed),
            )
        )
    return Table(
        f"{block.experiment}-{block.pair}-targets",
        f"What FedPLT, most balanced, gains over FedAvg ({block.setting.title}; "
        f"{basis(selection)})",
        (
            "goal",
            "target",
            "accuracy, points",
            "communication, GB",
            "upload alone, GB",
            "computation by the paper's formula, TFLOP",
            "computation, exact, TFLOP",
            "paper: points / GB / TFLOP",
        ),
        tuple(rows),
        (
            "Mean of the differences paired by seed, with their 95 % interval; a saved cost is "
            f"positive. Communication is up and down. {_FLOPS}",
            *([_OURS] if any("(ours)" in row[1] for row in rows) else []),
            *_missed(block),
            *crossing_note(selection, "balanced"),
        ),
    )


def _missed(block: Block) -> list[str]:
    accuracy, communication, computation = GAINS[block.pair]
    formula = block.pair not in COMPUTATION
    return [
        f"The paper's targets: {100 * accuracy.target:.0f} %, {communication.target / 1e9:.2f} GB, "
        f"{computation.target / 1e12:.2f} TFLOP"
        + (
            "."
            if formula
            else " (its formula on the FLOPs of convolutions: beside our exact ones)."
        )
    ]


def budget_targets(block: Block, selection: Selection) -> tuple[Target | None, Target | None]:
    """Experiment 2: an accuracy that FedAvg and FedPLT reach, a communication that all spend."""
    paper = BUDGETS.get(block.pair)
    finished = [name for name, entry in selection.entries.items() if entry.histories]
    return (
        accuracy_target(selection, ("fedavg", "fedplt"), paper.accuracy if paper else None),
        cost_target(selection, finished, BYTES, paper.communication if paper else None),
    )


def budget_table(block: Block, selection: Selection) -> Table | None:
    """Costs to an accuracy, and accuracy at equal communication: tab:exp2_target_budget."""
    accuracy, budget = budget_targets(block, selection)
    if accuracy is None or budget is None:
        return None
    paper = BUDGETS.get(block.pair)
    rows = []
    for name, entry in selection.entries.items():
        costs = [_cell(entry, accuracy, measure) for measure in _COLUMNS[1:]]
        minus = gain(selection, name, "fedplt", budget, ACCURACY) if name != "fedplt" else None
        row = [name_cell(entry), *costs, _cell(entry, budget, ACCURACY), interval_cell(minus)]
        if paper:
            row.append(_printed(paper.methods.get(name)))
        rows.append(tuple(row))
    header = [
        "contestant",
        f"GB to {accuracy.text}",
        "GB up to it",
        "TFLOP to it, paper's formula",
        "TFLOP to it, exact",
        f"accuracy at {budget.text}",
        "minus FedPLT",
    ]
    ours = not (accuracy.from_paper and budget.from_paper)
    return Table(
        f"{block.experiment}-{block.pair}-budgets",
        f"Equal accuracy and equal communication ({block.setting.title}; {basis(selection)})",
        (*header, *(["paper: GB / TFLOP / accuracy"] if paper else [])),
        tuple(rows),
        (
            "Mean ± sample standard deviation over the seeds that reach the target; differences "
            f"paired by seed, with their 95 % interval. Communication is up and down. {_FLOPS}",
            *([_OURS] if ours else []),
            *crossing_note(selection, "fedplt"),
            *(
                [
                    f"The paper's targets: {100 * paper.accuracy:.0f} %, "
                    f"{paper.communication / 1e9:.2f} GB."
                ]
                if paper
                else []
            ),
        ),
    )


def _cell(entry: Entry, target: Target, measure: str) -> str:
    """Mean and spread over the seeds that reach the target, and how many do not."""
    if not entry.histories:
        return "diverged"
    values = [value_at(run, target, measure) for run in entry.histories.values()]
    reached = [value / SCALES[measure] for value in values if value is not None]
    if not reached:
        return "never"
    missing = len(values) - len(reached)
    return spread_cell(reached) + (f" ({missing} never)" if missing else "")


def _printed(numbers: tuple[float | None, float | None, float] | None) -> str:
    if numbers is None:
        return NONE
    costs = " / ".join("never" if value is None else f"{value:.2f}" for value in numbers[:2])
    return f"{costs} / {numbers[2]:.2f}"
