"""Tables as plain values, and how numbers are written in them; ``fedplt.report`` renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedplt.comparison import Interval, spread
from fedplt.errors import RunError
from reproduction.catalog import EXPERIMENTS
from reproduction.recorded import Recorded
from reproduction.runner import by_id, current, with_shared
from reproduction.selection import Entry, Selection

NONE = "-"


Results = Mapping[tuple[str, str], Recorded]
"""All that was recorded, by experiment and pair."""


def load_results(folder: Path) -> dict[tuple[str, str], Recorded]:
    """Every ``<experiment>/<pair>/runs.json`` of a results folder."""
    found = {}
    for path in sorted(folder.glob("*/*/runs.json")):
        recorded = Recorded.load(path)
        key = (recorded.experiment, recorded.pair)
        if key != path.parts[-3:-1] or key[1] not in getattr(EXPERIMENTS.get(key[0]), "blocks", ()):
            raise RunError(
                f"{path} belongs to {' / '.join(key)}, which is not its folder's name or does not "
                "exist. `python -m reproduction` lists the experiments and pairs."
            )
        block = EXPERIMENTS[key[0]].blocks[key[1]]
        found[key] = block, current(recorded, block)
    runs = by_id(recorded for _, recorded in found.values())
    return {key: with_shared(*both, runs) for key, both in found.items()}


def percent(value: float, digits: int = 2) -> str:
    """
    >>> percent(0.8261)
    '82.61'
    """
    return f"{100 * value:.{digits}f}"


def accuracy_cell(values: Sequence[float]) -> str:
    """Mean and standard deviation in percent.

    >>> accuracy_cell([0.81, 0.82, 0.83]), accuracy_cell([0.5]), accuracy_cell([])
    ('82.00 ± 1.00', '50.00', '-')
    """
    return spread_cell([100 * value for value in values])


def spread_cell(values: Sequence[float]) -> str:
    if not values:
        return NONE
    found = spread(values)
    return f"{found.mean:.2f}" + (f" ± {found.std:.2f}" if found.std is not None else "")


def interval_cell(interval: Interval | None, digits: int = 2) -> str:
    """
    >>> interval_cell(Interval(0.5, -0.25, 1.25, 3)), interval_cell(Interval(0.5, None, None, 1))
    ('+0.50 [-0.25, +1.25]', '+0.50 (one seed)')
    """
    if interval is None:
        return NONE
    estimate = signed(interval.estimate, digits)
    if interval.low is None or interval.high is None:
        return f"{estimate} (one seed)"
    return f"{estimate} [{signed(interval.low, digits)}, {signed(interval.high, digits)}]"


def signed(value: float, digits: int = 2) -> str:
    """With its sign; a value that rounds to 0 is written as positive.

    >>> signed(-0.004), signed(-0.006)
    ('+0.00', '-0.01')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def seeds_text(seeds: Sequence[int]) -> str:
    """
    >>> seeds_text([1]), seeds_text([1, 2, 3])
    ('seed 1', 'seeds 1, 2, 3')
    """
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def basis(selection: Selection) -> str:
    """Rounds and seeds, for captions.

    If contestants have different seeds, a note of the table names the missing ones.
    """
    seeds = seeds_text(selection.seeds) if selection.seeds else "no run came to its end"
    return f"{selection.rounds} rounds, {seeds}"


def name_cell(entry: Entry) -> str:
    """A contestant's label, marked if a note is about its runs."""
    return entry.label + ("†" if entry.unsteady else "")


def run_notes(selection: Selection, expected: Mapping[str, str]) -> list[str]:
    """Notes about the runs of a table; ``expected``: labels by name."""
    notes = []
    for entry in selection.entries.values():
        for seed, run in sorted(entry.diverged.items()):
            notes.append(f"{entry.label}, seed {seed}: diverged after {run.rounds} rounds, "
                         "in no mean.")  # fmt: skip
        if entry.unsteady:
            counts = ", ".join(
                f"{number:,} (seed {seed})" for seed, number in entry.unsteady.items()
            )
            notes.append(
                f"† {entry.label}: updates refused because they were not finite: {counts}. The "
                "run went on without them; its accuracy is that of the clients that were left."
            )
        for seed, run in sorted(entry.short.items()):
            notes.append(f"{entry.label}, seed {seed}: {run.rounds} rounds, left out here.")
        there = {*entry.runs, *entry.diverged, *entry.short}
        missing = [seed for seed in selection.seeds if seed not in there]
        if missing:
            notes.append(f"{entry.label}: {seeds_text(missing)} not run.")
    absent = [label for name, label in expected.items() if name not in selection.entries]
    if absent:
        notes.append(f"Not run yet: {'; '.join(absent)}.")
    if len(selection.processors) > 1:
        notes.append(
            "Several kinds of processor; runs are paired only within one: "
            + "; ".join(selection.processors)
            + "."
        )
    elif selection.processors:
        notes.append(f"Processor: {selection.processors[0]}.")
    return notes
