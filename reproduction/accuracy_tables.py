"""Final accuracy of the contestants of a block, next to the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedplt.planning import allocation_of
from fedplt.text import Table
from reproduction.catalog import EXPERIMENTS
from reproduction.paper_numbers import FINAL_ACCURACY, IMBALANCE, LAYER_SIZES, Accuracy
from reproduction.recorded import Recorded, RecordedRun
from reproduction.runner import by_id
from reproduction.selection import LAST, Entry, Selection, may_be_paired, select
from reproduction.settings import PAIRS, SETTINGS, Block
from reproduction.statistics import Trend, spearman, trend
from reproduction.tables import (
    NONE,
    Results,
    accuracy_cell,
    basis,
    interval_cell,
    name_cell,
    percent,
    run_notes,
    seeds_text,
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
        found = balance(paper_imbalance(block), selection)
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


def imbalance(block: Block) -> dict[str, float]:
    """E by contestant with one allocation for all clients, at the paper's layer sizes."""
    sizes = LAYER_SIZES[block.pair]
    found = {
        contestant.name: allocation_of(sizes, contestant.layer_ratios).relative_imbalance
        for contestant in block.contestants
        if contestant.layer_ratios
    }
    return {"balanced": 0.0, **found}


def paper_imbalance(block: Block) -> dict[str, float]:
    """E of the allocations that the paper has, too."""
    return {name: e for name, e in imbalance(block).items() if name in IMBALANCE[block.pair]}


@dataclass(frozen=True)
class Balance:
    """Rank correlation of imbalance and final accuracy: within each seed, and of the means."""

    within: Trend
    of_means: float

    @property
    def p(self) -> float:
        """One-sided p value, in the direction of the observed correlation."""
        return min(self.within.p_falling, self.within.p_rising)

    @property
    def p_text(self) -> str:
        return f"p = {self.p:.3f}" if self.p >= 0.001 else "p < 0.001"

    @property
    def note(self) -> str:
        """The table note: the correlation, and how little so few allocations can show."""
        number = self.within.num_values
        perfect = 2 / math.factorial(number)
        return (
            f"Rank correlation of E and accuracy: {self.within.correlation:+.2f}, mean over "
            f"{self.within.num_seeds} seed{'s' * (self.within.num_seeds > 1)} (exact one-sided "
            f"{self.p_text}, Page's test); of the means {self.of_means:+.2f}, where even a perfect "
            f"order of {number} allocations has a two-sided p of {perfect:.2f}."
        )


def balance(
    values: Mapping[str, float],
    selection: Selection,
    finals: Mapping[str, Mapping[int, float]] | None = None,
) -> Balance | None:
    """None if the contestants have no seed and processor in common.

    ``values``: E by contestant. ``finals``: accuracy by contestant and seed (default: as in the
    verdicts).
    """
    if not set(values) <= set(selection.entries):
        return None
    chosen = finals or {name: selection.finals(name) for name in values}
    entries = [selection.entries[name] for name in values]
    first = entries[0].runs
    seeds = [
        seed
        for seed in sorted(first)
        if all(seed in e.runs and may_be_paired(first[seed], e.runs[seed]) for e in entries)
        and all(seed in chosen[name] for name in values)
    ]
    if not seeds:
        return None
    order = [*values.values()]
    return Balance(
        trend(order, [[chosen[name][seed] for name in values] for seed in seeds]),
        spearman(order, [fmean(chosen[name][seed] for seed in seeds) for name in values]),
    )


SUFFIXES = {"relu-logits": "relu", "input-scaling": "symmetric"}
"""By experiment with a setting of the authors' code: how its contestants' names end."""
_WORDS = {"relu-logits": "A ReLU behind the logits", "input-scaling": "Inputs from -1 to 1"}
_PLAIN = {"fedavg": "exp1", "balanced": "exp1", "fedplt": "exp2"}
"""By contestant without that setting: its experiment."""


def with_plain(recorded: Recorded, results: Results) -> Recorded:
    """The runs with a setting of the authors' code and those without, side by side."""
    runs: dict[str, Mapping[int, RecordedRun]] = {}
    labels: dict[str, str] = {}
    known = by_id(results.values())
    seeds = sorted({seed for found in recorded.runs.values() for seed in found})
    for plain, experiment in _PLAIN.items():
        block = EXPERIMENTS[experiment].blocks[recorded.pair]
        (contestant,) = (c for c in block.contestants if c.name == plain)
        name = f"{plain}-{SUFFIXES[recorded.experiment]}"
        others = {s: known[id] for s in seeds if (id := block.run_id(contestant, s)) in known}
        if others:
            runs[plain], labels[plain] = others, contestant.label
        if recorded.runs.get(name):
            runs[name], labels[name] = recorded.runs[name], recorded.labels[name]
    return Recorded(recorded.experiment, recorded.pair, recorded.setting, runs, labels)


def variant_table(block: Block, results: Results) -> Table:
    """Final accuracy with and without the setting, and the paper's beside those with it."""
    recorded = with_plain(results[block.experiment, block.pair], results)
    selection = select(recorded)
    ending = f"-{SUFFIXES[block.experiment]}"
    paper = {
        f"{plain}{ending}": FINAL_ACCURACY[experiment, block.pair][plain]
        for plain, experiment in _PLAIN.items()
    }
    labels = {contestant.name: contestant.label for contestant in block.contestants}
    header, rows = accuracy_columns(selection, (), labels, paper)
    header[4:4] = ["minus without it", "minus FedAvg of the same kind"]
    for row, name in zip(rows, selection.entries, strict=True):
        plain = name.removesuffix(ending)
        fedavg = "fedavg" if name == plain else f"fedavg{ending}"
        row[4:4] = [
            interval_cell(selection.difference(name, plain)) if name != plain else NONE,
            interval_cell(selection.difference(name, fedavg)) if name != fedavg else NONE,
        ]
    return Table(
        f"{block.experiment}-{block.pair}-accuracy",
        f"{_WORDS[block.experiment]}: final accuracy in % ({block.setting.title}; "
        f"{basis(selection)})",
        tuple(header),
        tuple(tuple(row) for row in rows),
        (
            f"{_explain(selection)} The paper's numbers stand beside the runs with this setting of "
            "the authors' public code.",
            *run_notes(selection, labels),
        ),
    )


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
    if recorded is None or name not in (whole := select(recorded)).entries:
        return NONE, paper
    selection = select(recorded, [name], whole.rounds)  # as many rounds as the block's others
    entry = selection.entries[name]
    if not entry.runs:
        return "diverged", paper
    short = selection.rounds < SETTINGS[pair].rounds
    rounds = f"; {selection.rounds:,} of {SETTINGS[pair].rounds:,} rounds" if short else ""
    cell = accuracy_cell([*entry.finals(selection.last).values()])
    return f"{cell} ({seeds_text(sorted(entry.runs))}{rounds})", paper
