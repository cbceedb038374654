"""Final accuracy of the contestants of a block, next to the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedplt.experiments.balance import balance, imbalance
from fedplt.experiments.block import Block
from fedplt.experiments.paper_numbers import FINAL_ACCURACY, IMBALANCE, Accuracy
from fedplt.experiments.selection import LAST, Entry, Selection
from fedplt.experiments.tables import (
    NONE,
    Table,
    accuracy_cell,
    basis,
    interval_cell,
    name_cell,
    percent,
    run_notes,
)

REFERENCES = {
    "exp1": ("fedavg", "balanced"),
    "exp2": ("fedavg", "fedplt"),
    "study": ("fedavg", "shallow-dominant"),
}
"""The contestants that others are compared with."""


def accuracy_table(block: Block, selection: Selection) -> Table:
    """Last round, mean of the last ten, paired differences, and the paper's numbers."""
    labels = {contestant.name: contestant.label for contestant in block.contestants}
    references = [n for n in REFERENCES[block.experiment] if n in selection.entries]
    paper = FINAL_ACCURACY.get((block.experiment, block.pair), {})
    header, rows = accuracy_columns(selection, references, labels, paper)
    notes = [_explain(selection)]
    if block.experiment == "exp1":
        header[2:2] = ["E", "E, paper"]
        own, printed = imbalance(block), IMBALANCE[block.pair]
        for row, name in zip(rows, selection.entries, strict=True):
            row[2:2] = [percent(e[name]) if name in e else NONE for e in (own, printed)]
        found = balance(own, selection)
        notes += [found.note] if found else []
    return Table(
        f"{block.experiment}-{block.pair}-accuracy",
        f"Final accuracy in % ({block.setting.title}; {basis(selection)})",
        tuple(header),
        tuple(tuple(row) for row in rows),
        (*notes, *run_notes(selection, labels)),
    )


def accuracy_columns(
    selection: Selection,
    references: Sequence[str],
    labels: Mapping[str, str],
    paper: Mapping[str, Accuracy],
) -> tuple[list[str], list[list[str]]]:
    """Header and rows, one per contestant that ran."""
    header = ["contestant", "trained, %", "last round", f"mean of last {LAST}"]
    header += [f"minus {labels[reference]}" for reference in references]
    rows = []
    for name, entry in selection.entries.items():
        row = [name_cell(entry), percent(entry.trained, 1), *_finals(entry)]
        for reference in references:
            found = selection.difference(name, reference) if name != reference else None
            row.append(interval_cell(found))
        rows.append(row)
    if paper:
        header.append("paper")
        for row, name in zip(rows, selection.entries, strict=True):
            row.append(f"{paper[name][0]:.2f} ± {paper[name][1]:.2f}" if name in paper else NONE)
    return header, rows


def _finals(entry: Entry) -> list[str]:
    if entry.diverged and not entry.runs:
        return ["diverged"] * 2
    note = f" ({len(entry.diverged)} diverged)" if entry.diverged else ""
    return [accuracy_cell([*entry.finals(last).values()]) + note for last in (1, LAST)]


def _explain(selection: Selection) -> str:
    final = f"mean of the last {LAST} evaluations" if selection.last == LAST else "last round"
    return (
        "Mean ± sample standard deviation over seeds. Differences in points, paired by seed, with "
        f"their 95 % interval ({final})."
    )
