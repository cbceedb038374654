"""Select comparable runs: of the same number of rounds, with diverged runs kept apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedplt.comparison import Interval, mean_interval
from fedplt.federation import History, RoundRecord, Totals
from reproduction.recorded import COSTS, Recorded, RecordedRun

LAST = 10
"""A final accuracy is the mean of this many evaluations."""
LAST_OF_PAIR = {"cifar-resnet": 1}
"""Pairs that are evaluated every five rounds: the last ten evaluations reach back too far."""
REFUSED_PER_ROUND = 0.1
"""With at least this many refused updates per round, tables mention them."""


def history_of(run: RecordedRun, rounds: int | None = None) -> History:
    """A recorded run, or its first rounds, as a history."""
    number = run.rounds if rounds is None else min(rounds, run.rounds)
    accuracy = dict(zip(run.evaluated, run.accuracy, strict=True))
    loss = dict(zip(run.evaluated, run.loss, strict=True))
    sums = {name: np.cumsum(run.costs[name]) for name in COSTS}
    return History(
        [
            RoundRecord(
                round=index + 1,
                num_clients=0,
                train_loss=math.nan,
                cost=_totals({name: run.costs[name][index] for name in COSTS}),
                total=_totals({name: sums[name][index] for name in COSTS}),
                seconds=run.seconds_per_round,
                score=accuracy.get(index + 1),
                loss=loss.get(index + 1),
            )
            for index in range(number)
        ],
        run.test_accuracy,
    )


def _totals(costs: Mapping[str, float]) -> Totals:
    return Totals(
        int(costs["bytes_up"]),
        int(costs["bytes_down"]),
        int(costs["flops"]),
        float(costs["paper_flops"]),
    )


@dataclass(frozen=True)
class Entry:
    """The runs of one contestant, by seed."""

    name: str
    label: str
    runs: Mapping[int, RecordedRun]
    histories: Mapping[int, History]
    """Histories of the runs, cut to the rounds of the selection."""
    diverged: Mapping[int, RecordedRun] = field(default_factory=dict)
    """Runs that ended because no update was finite. They are in no mean."""
    short: Mapping[int, RecordedRun] = field(default_factory=dict)
    """Runs with fewer rounds than the selection. They are in no mean."""

    def finals(self, last: int = LAST) -> dict[int, float]:
        """Final accuracy by seed: mean of the last evaluations."""
        return {seed: history.final_score(last) for seed, history in self.histories.items()}

    @property
    def trained(self) -> float:
        """Fraction of the model that clients train, on average."""
        runs = [*self.runs.values(), *self.diverged.values()]
        return sum(run.trained for run in runs) / len(runs)

    @property
    def unsteady(self) -> dict[int, int]:
        """Number of refused updates by seed, for runs with many."""
        return {
            seed: run.refused
            for seed, run in self.runs.items()
            if run.refused > REFUSED_PER_ROUND * run.rounds
        }


@dataclass(frozen=True)
class Selection:
    """Contestants over the same number of rounds, or uncut (see :func:`select`)."""

    experiment: str
    pair: str
    rounds: int
    entries: Mapping[str, Entry]
    """Entries by name, in the order of the block; only contestants with runs."""

    @property
    def last(self) -> int:
        """How many evaluations the final accuracy averages, in differences and verdicts."""
        return LAST_OF_PAIR.get(self.pair, LAST)

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for entry in self.entries.values() for seed in entry.runs})

    @property
    def processors(self) -> list[str]:
        runs = [run for entry in self.entries.values() for run in entry.runs.values()]
        return sorted({run.processor for run in runs})

    def pairs(self, first: str, second: str) -> list[int]:
        """Seeds that both have run on the same kind of processor."""
        if not {first, second} <= set(self.entries):
            return []
        a, b = self.entries[first].runs, self.entries[second].runs
        return [seed for seed in sorted(a) if seed in b and may_be_paired(a[seed], b[seed])]

    def finals(self, name: str, last: int | None = None) -> dict[int, float]:
        """Final accuracy by seed; ``last``: of how many evaluations (default: as in verdicts)."""
        return self.entries[name].finals(last or self.last)

    def test_finals(self, name: str) -> dict[int, float]:
        """Accuracy on the test set by seed, after the last round of runs that are not cut."""
        return {
            seed: run.test_accuracy
            for seed, run in self.entries[name].runs.items()
            if run.test_accuracy is not None and run.rounds == self.rounds
        }

    def difference(self, first: str, second: str, last: int | None = None) -> Interval | None:
        """Final accuracy of the first minus that of the second, in points, paired by seed."""
        both = [name for name in (first, second) if name in self.entries]
        return self._paired(first, second, [self.finals(name, last) for name in both])

    def test_difference(self, first: str, second: str) -> Interval | None:
        """The same on the test set."""
        both = [name for name in (first, second) if name in self.entries]
        return self._paired(first, second, [self.test_finals(name) for name in both])

    def _paired(
        self, first: str, second: str, finals: Sequence[Mapping[int, float]]
    ) -> Interval | None:
        seeds = [s for s in self.pairs(first, second) if all(s in found for found in finals)]
        if not seeds:
            return None
        a, b = finals
        return mean_interval([100 * (a[seed] - b[seed]) for seed in seeds])


def may_be_paired(first: RecordedRun, second: RecordedRun) -> bool:
    """Whether both runs used one and the same kind of processor in all rounds."""
    return first.processor == second.processor and " and " not in first.processor


def select(
    recorded: Recorded,
    names: Sequence[str] | None = None,
    rounds: int | None = None,
    *,
    uncut: bool = False,
) -> Selection:
    """The named contestants (or all), cut to the most rounds that each of them has some run of.

    Shorter runs are left out, so that a short one does not shorten all others. ``uncut``: all runs
    as long as they are, for questions of cost; then ``rounds`` are those of the shortest.
    """
    chosen = {
        name: recorded.runs[name]
        for name in (names if names is not None else recorded.labels)
        if recorded.runs.get(name)
    }
    lengths = [[r.rounds for r in runs.values() if not r.diverged] for runs in chosen.values()]
    longest = min if uncut else max
    common = rounds or min((longest(each) for each in lengths if each), default=0)
    entries = {}
    for name, runs in chosen.items():
        kept = {s: run for s, run in runs.items() if not run.diverged and run.rounds >= common}
        cut = None if uncut else common
        histories = {seed: history_of(run, cut) for seed, run in kept.items()}
        diverged = {seed: run for seed, run in runs.items() if run.diverged}
        short = {s: run for s, run in runs.items() if s not in kept and s not in diverged}
        if kept or diverged:
            entries[name] = Entry(name, recorded.labels[name], kept, histories, diverged, short)
    return Selection(recorded.experiment, recorded.pair, common, entries)
