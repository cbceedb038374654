"""Final accuracy of experiments 1 and 2 next to the paper's, all pairs in one table."""

from __future__ import annotations

from fedplt.experiments.catalog import EXPERIMENTS
from fedplt.experiments.claim_cases import PAIRS
from fedplt.experiments.paper_numbers import FINAL_ACCURACY
from fedplt.experiments.selection import select
from fedplt.experiments.settings import SETTINGS
from fedplt.experiments.tables import NONE, Results, Table, accuracy_cell

_EXPERIMENTS = ("exp1", "exp2")


def overview_table(results: Results) -> Table | None:
    """None if nothing has run."""
    rows: list[tuple[str, ...]] = []
    for experiment in _EXPERIMENTS:
        blocks = EXPERIMENTS[experiment].blocks
        labels = {c.name: c.label for block in blocks.values() for c in block.contestants}
        for name, label in labels.items():
            if name == "fedavg" and rows:
                continue  # the same runs
            cells = [cell for p in PAIRS for cell in _cells(results, experiment, p, name)]
            if any(cell != NONE for cell in cells[::2]):
                shared = name == "fedavg"
                rows.append((label if shared else f"{label} ({experiment})", *cells))
    if not rows:
        return None
    header = [text for p in PAIRS for text in (SETTINGS[p].title, "paper")]
    return Table(
        "overview",
        "Final accuracy in %, next to the paper's",
        ("contestant", *header),
        tuple(rows),
        ("Mean ± sample standard deviation over seeds; n: number of seeds. Rounds are given where "
         "they are fewer than the paper's.",),
    )  # fmt: skip


def _cells(results: Results, experiment: str, pair: str, name: str) -> tuple[str, str]:
    """Ours and the paper's. FedAvg takes part in both experiments: the one with more seeds."""
    printed = FINAL_ACCURACY[experiment, pair].get(name)
    paper = f"{printed[0]:.2f} ± {printed[1]:.2f}" if printed else NONE
    found = []
    for other in _EXPERIMENTS if name == "fedavg" else (experiment,):
        recorded = results.get((other, pair))
        selection = select(recorded, [name]) if recorded else None
        if selection and name in selection.entries:
            found.append((selection, selection.entries[name]))
    if not found:
        return NONE, paper
    selection, entry = max(found, key=lambda pair: len(pair[1].runs))
    if not entry.runs:
        return "diverged", paper
    short = selection.rounds < SETTINGS[pair].rounds
    rounds = f", {selection.rounds:,} of {SETTINGS[pair].rounds:,} rounds" if short else ""
    finals = [*entry.finals(selection.last).values()]
    return f"{accuracy_cell(finals)} (n = {len(finals)}{rounds})", paper
