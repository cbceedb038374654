"""Tables of experiment 3: client sampling, with the bytes really uploaded."""

from __future__ import annotations

from fedplt.planning import BYTES_PER_NUMBER
from fedplt.text import Table
from reproduction.accuracy_tables import accuracy_columns
from reproduction.paper_numbers import LAYER_SIZES, SAMPLING_GAIN, SAMPLING_UNITS
from reproduction.selection import Entry, Selection
from reproduction.settings import Block
from reproduction.tables import NONE, basis, interval_cell, run_notes, spread_cell

FLEETS = ("low", "moderate")
REFERENCE = "full-ocs"
_WHOLE = ("full-ocs", "full-uniform")
BUDGET = ("ocs", "aware", "literal", "uniform")
"""As in the paper: a budget of five clients for the original rule, of five models for ours."""
EQUAL = ("ocs-equal", "aware", "literal-equal", "uniform-equal")
"""All samplers with the expected uploads of five models."""


def sampling_tables(block: Block, selection: Selection) -> list[Table]:
    budget = _table(block, selection, BUDGET, "budget", "the paper's budget of 5")
    equal = _table(block, selection, EQUAL, "equal", "equal expected uploads")
    return [table for table in (budget, equal) if table.rows]


def fleet_names(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Names of contestants by fleet, those with the whole model first."""
    return (*_WHOLE, *(f"{fleet}-{kind}" for fleet in FLEETS for kind in kinds))


def _table(
    block: Block, selection: Selection, kinds: tuple[str, ...], name: str, words: str
) -> Table:
    wanted = [n for n in fleet_names(kinds) if n in selection.entries]
    chosen = Selection(
        selection.experiment,
        selection.pair,
        selection.rounds,
        {n: selection.entries[n] for n in wanted},
    )
    labels = {c.name: c.label for c in block.contestants if c.name in fleet_names(kinds)}
    references = [REFERENCE] if REFERENCE in chosen.entries else []
    header, rows = accuracy_columns(chosen, references, labels, {})
    header[4:4] = ["models up per round", "GB up", "GB up and down"]
    for row, entry in zip(rows, chosen.entries.values(), strict=True):
        row[4:4] = _spent(entry)
    header += ["minus FedPLT-aware OCS", "paper: over full-model OCS", "paper: units"]
    for row, contestant in zip(rows, wanted, strict=True):
        aware = f"{contestant.partition('-')[0]}-aware"
        row.append(
            interval_cell(chosen.difference(contestant, aware) if contestant != aware else None)
        )
        printed = SAMPLING_GAIN.get(contestant)
        row.append(NONE if printed is None else f"{printed:+.2f}")
        row.append(f"{SAMPLING_UNITS[contestant]:,}" if contestant in SAMPLING_UNITS else NONE)
    return Table(
        f"{block.experiment}-{block.pair}-{name}",
        f"Sampled clients, {words}: accuracy in % and what was spent ({block.setting.title}; "
        f"{basis(chosen)})",
        tuple(header),
        tuple(tuple(row) for row in rows),
        (
            "Mean ± sample standard deviation over seeds. Differences in points, paired by seed, "
            "with their 95 % interval (mean of the last 10 evaluations). With sampling by norms "
            "all clients get the model and train, only the chosen upload, and updates are divided "
            "by their probabilities; with uniform sampling only the chosen get the model, and "
            "their updates are averaged. FedPLT-aware OCS is that of the same fleet. The paper "
            "gives its communication in units that it does not define.",
            *run_notes(chosen, labels),
        ),
    )


def _spent(entry: Entry) -> list[str]:
    """Cells with the uploads of the runs: whole models per round, and GB."""
    if not entry.histories:
        return [NONE] * 3
    model = BYTES_PER_NUMBER * sum(LAYER_SIZES["cifar-fcn"])
    ends = [history.rounds[-1] for history in entry.histories.values()]
    return [
        spread_cell([end.total.bytes_up / model / end.round for end in ends]),
        spread_cell([end.total.bytes_up / 1e9 for end in ends]),
        spread_cell([(end.total.bytes_up + end.total.bytes_down) / 1e9 for end in ends]),
    ]
