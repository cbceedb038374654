"""What is shown of each experiment: its tables, and which contestants share a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedplt.experiments.accuracy_table import accuracy_table
from fedplt.experiments.block import Block
from fedplt.experiments.catalog import EXPERIMENTS
from fedplt.experiments.relu_table import relu_table, with_plain
from fedplt.experiments.sampling_tables import BUDGET, EQUAL, FLEETS, sampling_tables
from fedplt.experiments.selection import Selection, select
from fedplt.experiments.study_tables import study_tables
from fedplt.experiments.tables import Results, Table
from fedplt.experiments.target_tables import budget_table, gains_table

DYNAMICS = ("model", "layers")
"""Figures of the study besides its accuracy."""


@dataclass(frozen=True)
class Page:
    """The tables of a block, and the contestants of every accuracy figure by its file's name."""

    block: Block
    title: str
    tables: tuple[Table, ...]
    figures: Mapping[str, Selection]

    @property
    def pictures(self) -> list[str]:
        """Names of all figures."""
        return [*self.figures, *(DYNAMICS if self.block.experiment == "study" else ())]


def page_of(results: Results, experiment: str, pair: str) -> Page:
    """The page of a block that has runs."""
    block = EXPERIMENTS[experiment].blocks[pair]
    recorded = results[experiment, pair]
    selection = select(recorded)
    figures = {"accuracy": selection}
    tables: Sequence[Table | None]
    match experiment:
        case "exp1":
            tables = [accuracy_table(block, selection), gains_table(block, selection)]
        case "exp2":
            tables = [accuracy_table(block, selection), budget_table(block, selection)]
        case "exp3":
            tables = sampling_tables(block, selection)
            figures = _by_fleet(selection)
        case "study":
            tables = study_tables(block, selection)
        case _:
            tables = [relu_table(block, results)]
            figures = {"accuracy": select(with_plain(recorded, results))}
    title = f"{EXPERIMENTS[experiment].title} ({block.setting.title})"
    found = tuple(table for table in tables if table is not None and table.rows)
    drawn = {name: s for name, s in figures.items() if any(e.runs for e in s.entries.values())}
    return Page(block, title[0].upper() + title[1:], found, drawn)


def _by_fleet(selection: Selection) -> dict[str, Selection]:
    """One selection per fleet: sixteen curves are too many for one figure."""
    result = {}
    for fleet in FLEETS:
        names = ["full-ocs", *(f"{fleet}-{kind}" for kind in dict.fromkeys((*BUDGET, *EQUAL)))]
        entries = {n: selection.entries[n] for n in names if n in selection.entries}
        if entries:
            result[f"accuracy-{fleet}"] = Selection(
                selection.experiment, selection.pair, selection.rounds, entries
            )
    return result
