"""Tables of section III: the configurations and their training dynamics."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedplt.comparison import spread
from fedplt.planning import allocation_of
from fedplt.text import Table
from reproduction.accuracy_tables import accuracy_table
from reproduction.paper_numbers import LAYER_SIZES, STUDY
from reproduction.recorded import Series
from reproduction.selection import Entry, Selection
from reproduction.settings import Block
from reproduction.tables import NONE, basis, name_cell


def study_tables(block: Block, selection: Selection) -> list[Table]:
    return [
        configurations_table(block),
        accuracy_table(block, selection),
        dynamics_table(block, selection),
    ]


def configurations_table(block: Block) -> Table:
    """Q, ratio, X and Std(X) of every configuration; needs no runs."""
    sizes = LAYER_SIZES[block.pair]
    rows = []
    for contestant in block.contestants:
        found = allocation_of(sizes, contestant.layer_ratios or [1.0] * len(sizes))
        ratio, std = STUDY[block.pair][contestant.name]
        rows.append(
            (
                contestant.label,
                _vector(found.layer_ratios, 2),
                f"{100 * found.ratio:.2f}",
                _vector(found.contributions, 4),
                f"{found.contributions_std:.4f}",
                f"{ratio:.2f}, {std:.4f}",
            )
        )
    return Table(
        f"study-{block.pair}-configurations",
        f"The configurations ({block.setting.title})",
        ("configuration", "Q", "ratio, %", "X", "Std(X)", "paper: ratio, Std(X)"),
        tuple(rows),
        ("Computed at the paper's layer sizes; Std is the population standard deviation.",),
    )


def _vector(values: tuple[float, ...], digits: int) -> str:
    return f"({', '.join(f'{value:.{digits}f}' for value in values)})"


def dynamics_table(block: Block, selection: Selection) -> Table:
    """How the global model moved at the end: update norm and effective perturbation."""
    rows = tuple(
        (
            name_cell(entry),
            _cell(entry, selection.rounds, lambda s, i: s.update_norm[i]),
            _cell(entry, selection.rounds, lambda s, i: s.effective_perturbation[i]),
            _cell(entry, selection.rounds, _layer_range),
        )
        for entry in selection.entries.values()
    )
    return Table(
        f"study-{block.pair}-dynamics",
        f"Training dynamics at the end ({block.setting.title}; {basis(selection)})",
        ("configuration", "update norm", "effective perturbation", "its range over layers"),
        rows,
        (
            "In the last round, mean ± sample standard deviation over seeds. The range is the "
            "largest minus the smallest effective perturbation of a layer.",
        ),
    )


def _layer_range(series: Series, index: int) -> float:
    values = [layer[index] for layer in series.layer_effective_perturbation.values()]
    known = [value for value in values if math.isfinite(value)]
    return max(known) - min(known) if known else math.nan


def _cell(entry: Entry, rounds: int, value: Callable[[Series, int], float]) -> str:
    """A value of the last recorded round within the selection: mean and spread over seeds."""
    values = []
    for run in entry.runs.values():
        within = [index for index, number in enumerate(run.dynamics.rounds) if number <= rounds]
        if within:
            values.append(value(run.dynamics, within[-1]))
    if not values:
        return NONE
    found = spread(values)
    return f"{found.mean:.4f}" + (f" ± {found.std:.4f}" if found.std is not None else "")
