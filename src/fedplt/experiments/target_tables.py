"""The paper's target tables: gains at equal accuracy, communication and computation."""

from __future__ import annotations

from fedplt.experiments.block import Block
from fedplt.experiments.paper_numbers import BUDGETS, GAINS, Gains
from fedplt.experiments.selection import Entry, Selection
from fedplt.experiments.tables import NONE, Table, basis, interval_cell, name_cell, spread_cell
from fedplt.experiments.targets import (
    ACCURACY,
    BYTES,
    EXACT_FLOPS,
    PAPER_FLOPS,
    SCALES,
    UPLOAD,
    Target,
    accuracy_target,
    cost_target,
    gain,
    value_at,
)

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
