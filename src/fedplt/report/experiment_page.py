"""The page of one of the paper's experiments, from its recorded runs."""

from __future__ import annotations

from fedplt.experiments import Entry, Page
from fedplt.report.page import Content, ShownRun, content_of
from fedplt.report.page.content import Part


def experiment_content(page: Page) -> Content:
    """The runs of all figures together, and the tables of the experiment."""
    entries = {
        name: entry
        for selection in page.figures.values()
        for name, entry in selection.entries.items()
        if entry.histories
    }
    rounds = max((selection.rounds for selection in page.figures.values()), default=0)
    groups = {entry.label: _runs(name, entry, rounds) for name, entry in entries.items()}
    return content_of(page.title, groups, Part("Tables of the experiment", tables=page.tables))


def _runs(name: str, entry: Entry, rounds: int) -> list[ShownRun]:
    return [
        ShownRun(
            f"{name}-seed{seed}",
            seed,
            history,
            rounds,
            sessions=[{"processor": part} for part in entry.runs[seed].processor.split(" and ")],
        )
        for seed, history in sorted(entry.histories.items())
    ]
