"""Runs with a ReLU after the logits, as in the authors' code, next to runs without."""

from __future__ import annotations

from collections.abc import Mapping

from fedplt.experiments.accuracy_table import accuracy_columns
from fedplt.experiments.block import Block
from fedplt.experiments.catalog import EXPERIMENTS
from fedplt.experiments.paper_numbers import FINAL_ACCURACY
from fedplt.experiments.recorded import Recorded, RecordedRun
from fedplt.experiments.selection import select
from fedplt.experiments.sharing import by_id
from fedplt.experiments.tables import NONE, Results, Table, basis, interval_cell, run_notes

PLAIN = {
    "fedavg-relu": ("exp1", "fedavg"),
    "balanced-relu": ("exp1", "balanced"),
    "fedplt-relu": ("exp2", "fedplt"),
}
"""By contestant with the ReLU: the experiment and the contestant without it."""


def with_plain(recorded: Recorded, results: Results) -> Recorded:
    """The runs with a ReLU and those without, side by side."""
    runs: dict[str, Mapping[int, RecordedRun]] = {}
    labels: dict[str, str] = {}
    known = by_id(results.values())
    seeds = sorted({seed for found in recorded.runs.values() for seed in found})
    for name, (experiment, plain) in PLAIN.items():
        block = EXPERIMENTS[experiment].blocks[recorded.pair]
        (contestant,) = (c for c in block.contestants if c.name == plain)
        others = {s: known[id] for s in seeds if (id := block.run_id(contestant, s)) in known}
        if others:
            runs[plain], labels[plain] = others, contestant.label
        if recorded.runs.get(name):
            runs[name], labels[name] = recorded.runs[name], recorded.labels[name]
    return Recorded(recorded.experiment, recorded.pair, recorded.setting, runs, labels)


def relu_table(block: Block, results: Results) -> Table:
    """Final accuracy with and without the ReLU, and the paper's beside those with it."""
    recorded = with_plain(results[block.experiment, block.pair], results)
    selection = select(recorded)
    paper = {
        name: FINAL_ACCURACY[experiment, block.pair][plain]
        for name, (experiment, plain) in PLAIN.items()
    }
    labels = {contestant.name: contestant.label for contestant in block.contestants}
    header, rows = accuracy_columns(selection, (), labels, paper)
    header[4:4] = ["minus without ReLU", "minus FedAvg of the same kind"]
    for row, name in zip(rows, selection.entries, strict=True):
        plain = PLAIN[name][1] if name in PLAIN else ""
        fedavg = "fedavg-relu" if plain else "fedavg"
        row[4:4] = [
            interval_cell(selection.difference(name, plain)) if plain else NONE,
            interval_cell(selection.difference(name, fedavg)) if name != fedavg else NONE,
        ]
    return Table(
        f"{block.experiment}-{block.pair}-accuracy",
        f"A ReLU behind the logits: final accuracy in % ({block.setting.title}; "
        f"{basis(selection)})",
        tuple(header),
        tuple(tuple(row) for row in rows),
        (
            "Mean ± sample standard deviation over seeds. Differences in points, paired by seed, "
            "with their 95 % interval (mean of the last 10 evaluations). The paper's numbers stand "
            "beside the runs with the ReLU: the authors' public code has it.",
            *run_notes(selection, labels),
        ),
    )
