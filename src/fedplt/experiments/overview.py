"""Final accuracy of experiments 1 and 2 next to the paper's, all pairs in one table."""

from __future__ import annotations

from fedplt.experiments.catalog import EXPERIMENTS
from fedplt.experiments.claim_cases import PAIRS
from fedplt.experiments.paper_numbers import FINAL_ACCURACY
from fedplt.experiments.selection import select
from fedplt.experiments.settings import SETTINGS
from fedplt.experiments.tables import NONE, Results, Table, accuracy_cell, seeds_text

_EXPERIMENTS = ("exp1", "exp2")


def overview_table(results: Results) -> Table | None:
    """None if nothing has run."""
    rows: list[tuple[str, ...]] = []
    for experiment in _EXPERIMENTS:
        blocks = EXPERIMENTS[experiment].blocks
        labels = {c.name: c.label for block in blocks.values() for c in block.contestants}
        for name, label in labels.items():
            cells = [cell for p in PAIRS for cell in _cells(results, experiment, p, name)]
            if any(cell != NONE for cell in cells[::2]):
                rows.append((f"{label} ({experiment})", *cells))
    if not rows:
        return None
    header = [text for p in PAIRS for text in (SETTINGS[p].title, "paper")]
    return Table(
        "overview",
        "Final accuracy in %, next to the paper's",
        ("contestant", *header),
        tuple(rows),
        ("Mean ± sample standard deviation over seeds. Rounds are given where they are fewer than "
         "the paper's. FedAvg of the two experiments differs in the seeds only.",),
    )  # fmt: skip


def _cells(results: Results, experiment: str, pair: str, name: str) -> tuple[str, str]:
    """Ours and the paper's."""
    printed = FINAL_ACCURACY[experiment, pair].get(name)
    paper = f"{printed[0]:.2f} ± {printed[1]:.2f}" if printed else NONE
    recorded = results.get((experiment, pair))
    selection = select(recorded, [name]) if recorded else None
    if selection is None or name not in selection.entries:
        return NONE, paper
    entry = selection.entries[name]
    if not entry.runs:
        return "diverged", paper
    short = selection.rounds < SETTINGS[pair].rounds
    rounds = f"; {selection.rounds:,} of {SETTINGS[pair].rounds:,} rounds" if short else ""
    cell = accuracy_cell([*entry.finals(selection.last).values()])
    return f"{cell} ({seeds_text(sorted(entry.runs))}{rounds})", paper
