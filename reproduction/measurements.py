"""What a claim measures on the recorded runs; each kind is a dataclass with one function."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from fedplt.comparison import MEASURES, Interval, mean_interval, spread
from reproduction.accuracy_tables import Balance, balance, paper_imbalance
from reproduction.catalog import EXPERIMENTS
from reproduction.selection import Entry, Selection, select
from reproduction.statistics import std_ratio
from reproduction.tables import NONE, Results, interval_cell
from reproduction.targets import ACCURACY, UNITS, Target, accuracy_target, cost_target, gain
from reproduction.verdicts import Evidence, Other, Rule, apart, beats, better_or_worse, on_par

SIGNIFICANT = 0.025
"""Significance level, one-sided: that of one end of a 95 % interval."""


@dataclass(frozen=True)
class Measurement:
    """Compares contestants of one block."""

    experiment: str
    pair: str

    def evidence(self, results: Results) -> Evidence | None:
        """The evidence; None if runs are missing."""
        raise NotImplementedError

    def select(self, results: Results, *names: str, uncut: bool = False) -> Selection | None:
        recorded = results.get((self.experiment, self.pair))
        if recorded is None:
            return None
        found = select(recorded, names, uncut=uncut)
        return found if set(found.entries) == set(names) else None


@dataclass(frozen=True)
class Versus(Measurement):
    """Compares two contestants."""

    first: str
    second: str

    def both(self, results: Results) -> Selection | None:
        return self.select(results, self.first, self.second)


def _nothing(why: str, selection: Selection, seeds: int = 0) -> Evidence:
    """There are runs, but nothing to compare."""
    return Evidence(why, NONE, None, None, seeds, selection.rounds)


_NO_PAIR = "no two runs of one seed and processor"


def _from(interval: Interval, rule: Rule, rounds: int, unit: str, at: str = "") -> Evidence:
    text = interval_cell(interval)
    estimate, _, ends = text.partition(" ")
    decision, towards = rule(interval)
    ours = f"{estimate} {unit}" + (f" at {at}" if at else "")
    return Evidence(ours, ends if interval.low is not None else NONE, decision, towards,
                    interval.number, rounds)  # fmt: skip


LAST_ROUND, TEST_SET = "last round", "test set"
"""Names of the final accuracies beside the mean of the last evaluations."""


def _others(selection: Selection, first: str, second: str, rule: Rule) -> dict[str, Other]:
    """A difference by the last round alone, and on the test set."""
    found = {
        LAST_ROUND: selection.difference(first, second, last=1),
        TEST_SET: selection.test_difference(first, second),
    }
    return {
        name: Other(interval_cell(interval), *rule(interval))
        for name, interval in found.items()
        if interval is not None
    }


def _other_finals(
    selection: Selection, names: Iterable[str]
) -> Iterator[tuple[str, dict[str, dict[int, float]]]]:
    """Accuracy by contestant and seed, after the last round alone and on the test set."""
    names = list(names)
    yield LAST_ROUND, {name: selection.finals(name, 1) for name in names}
    yield TEST_SET, {name: selection.test_finals(name) for name in names}


@dataclass(frozen=True)
class Difference(Versus):
    """Final accuracy of the first minus that of the second."""

    rule: Rule = beats

    def evidence(self, results: Results) -> Evidence | None:
        selection = self.both(results)
        if selection is None:
            return None
        for name, towards in ((self.second, True), (self.first, False)):
            entry = selection.entries[name]
            if not entry.runs:  # a diverged run has no number, so there is no interval either
                rounds = select(results[self.experiment, self.pair]).rounds  # of the whole block
                return Evidence(f"{entry.label} diverged", NONE, None, towards,
                                len(entry.diverged), rounds)  # fmt: skip
        found = selection.difference(self.first, self.second)
        if found is None:
            return _nothing(_NO_PAIR, selection)
        evidence = _from(found, self.rule, selection.rounds, "points")
        evidence = replace(evidence, others=_others(selection, self.first, self.second, self.rule))
        if self.rule is on_par:
            evidence = replace(evidence, instead=better_or_worse(found), apart=apart(found))
        for entry in selection.entries.values():
            if entry.diverged:
                number, of = len(entry.diverged), len(entry.diverged) + len(entry.runs)
                lost = f" ({number} of {of} seeds of {entry.label} diverged)"
                evidence = replace(evidence, ours=evidence.ours + lost)
        unsteady = [e.label for e in selection.entries.values() if e.unsteady]
        if unsteady:
            names = ", ".join(unsteady)
            note = f"† Many updates were refused because they were not finite: {names}."
            return replace(evidence, ours=f"{evidence.ours}†", note=note)
        return evidence


@dataclass(frozen=True)
class CurveDifference(Versus):
    """Accuracy of the first minus that of the second by round, mean over all rounds."""

    def evidence(self, results: Results) -> Evidence | None:
        selection = self.both(results)
        if selection is None:
            return None
        found = selection.difference(self.first, self.second, last=selection.rounds)
        if found is None:
            return _nothing(_NO_PAIR, selection)
        evidence = _from(found, on_par, selection.rounds, "points")
        return replace(evidence, instead=better_or_worse(found), apart=apart(found))


@dataclass(frozen=True)
class SamplingRatio(Versus):
    """A property of the first sampler divided by that of the second, paired by seed."""

    of: str
    """``variance`` (smaller is better) or ``fairness`` (larger is better)."""

    def evidence(self, results: Results) -> Evidence | None:
        selection = self.both(results)
        if selection is None:
            return None
        runs = [selection.entries[name].runs for name in (self.first, self.second)]
        values = [
            [getattr(run.sampled, self.of) for seed in selection.pairs(self.first, self.second)
             if (run := found[seed]).sampled]
            for found in runs
        ]  # fmt: skip
        first, second = values
        if not first or len(first) != len(second):
            return _nothing("not recorded", selection)
        ratios = mean_interval([a / b for a, b in zip(first, second, strict=True)])
        sign = -1 if self.of == "variance" else 1
        away = mean_interval([sign * (a / b - 1) for a, b in zip(first, second, strict=True)])
        decision, towards = beats(away)
        ends = f"[{ratios.low:.2f}, {ratios.high:.2f}]" if away.low is not None else NONE
        shown = ", ".join(f"{fmean(v):.3g}" for v in values)
        return Evidence(f"{ratios.estimate:.2f} times ({shown})", ends, decision, towards,
                        len(first), selection.rounds)  # fmt: skip


TIMES = Path(__file__).parents[1] / "results" / "why" / "times.json"
"""Predicted seconds of a round on the devices of the built-in fleet ``kitchen``."""


@dataclass(frozen=True)
class SimulatedTime(Versus):
    """Simulated time to an accuracy: hours of the second minus those of the first."""

    wanted: float

    def evidence(self, results: Results) -> Evidence | None:
        selection = self.select(results, self.first, self.second, uncut=True)
        if selection is None or not TIMES.is_file():
            return None
        seconds = json.loads(TIMES.read_text(encoding="utf-8"))["round_seconds"]
        names = self.first, self.second
        hours = []
        for seed in selection.pairs(*names):
            runs = [selection.entries[name].histories[seed] for name in names]
            rounds = [next((r.round for r in h.evaluated if (r.score or 0) >= self.wanted), None)
                      for h in runs]  # fmt: skip
            if all(rounds) and all(str(seed) in seconds[name] for name in names):
                pairs = zip(names, rounds, strict=True)
                own, other = (seconds[name][str(seed)] * (r or 0) / 3600 for name, r in pairs)
                hours.append(other - own)
        if not hours:
            return _nothing(f"not all reach {100 * self.wanted:.0f} %", selection)
        at = f"{100 * self.wanted:.0f} %"
        evidence = _from(mean_interval(hours), beats, selection.rounds, "h saved", at)
        return replace(evidence, target_reached=True)


@dataclass(frozen=True)
class FallsWithImbalance(Measurement):
    """Rank correlation of imbalance E and final accuracy, within each seed."""

    def evidence(self, results: Results) -> Evidence | None:
        block = EXPERIMENTS[self.experiment].blocks[self.pair]
        values = paper_imbalance(block)
        selection = self.select(results, *values)
        if selection is None:
            return None
        found = balance(values, selection)
        if found is None:
            return _nothing(_NO_PAIR, selection)
        within = found.within
        others = {
            name: Other(
                f"{other.within.correlation:+.2f}, {other.p_text}",
                _falls(other),
                other.within.correlation < 0,
            )
            for name, finals in _other_finals(selection, values)
            if (other := balance(values, selection, finals)) is not None
        }
        return Evidence(
            f"{within.correlation:+.2f} (of the means {found.of_means:+.2f})",
            f"{within.num_values} allocations, {found.p_text}",
            _falls(found),
            within.correlation < 0,
            within.num_seeds,
            selection.rounds,
            others=others,
        )


def _falls(found: Balance) -> bool | None:
    """Whether accuracy falls with imbalance; None: not decided."""
    return found.within.p_falling < found.within.p_rising if found.p <= SIGNIFICANT else None


@dataclass(frozen=True)
class SmallerSpread(Versus):
    """Standard deviation over seeds: that of the first divided by that of the second."""

    def evidence(self, results: Results) -> Evidence | None:
        selection = self.both(results)
        if selection is None:
            return None
        names = self.first, self.second
        finals = {name: selection.finals(name) for name in names}
        found = self._spreads(finals)
        if found is None:
            fewest = min(len(values) for values in finals.values())
            return _nothing("too few seeds for a spread", selection, fewest)
        return Evidence(
            found.text,
            found.ends,
            found.decision,
            found.ratio.estimate < 1,
            found.ratio.number,
            selection.rounds,
            others={
                name: Other(f"{other.text}, {other.ends}", other.decision, other.ratio.estimate < 1)
                for name, each in _other_finals(selection, names)
                if (other := self._spreads(each)) is not None
            },
        )

    def _spreads(self, finals: Mapping[str, Mapping[int, float]]) -> _Spreads | None:
        """Of accuracies by contestant and seed; None if there are too few."""
        own, other = (
            [100 * value for value in finals[name].values()] for name in (self.first, self.second)
        )
        ratio = std_ratio(own, other) if own and other else None
        if ratio is None or ratio.low is None or ratio.high is None:
            return None
        return _Spreads(
            f"{spread(own).std:.2f} against {spread(other).std:.2f}",
            f"ratio in [{ratio.low:.2f}, {ratio.high:.2f}]",
            True if ratio.high < 1 else False if ratio.low > 1 else None,
            ratio,
        )


@dataclass(frozen=True)
class _Spreads:
    """Two standard deviations, in points, and the interval of their ratio."""

    text: str
    ends: str
    decision: bool | None
    ratio: Interval


@dataclass(frozen=True)
class Saving(Versus):
    """Cost to an accuracy that both reach: that of the second minus that of the first."""

    measure: str
    wanted: float | None = None

    def evidence(self, results: Results) -> Evidence | None:
        selection = self.select(results, self.first, self.second, uncut=True)
        if selection is None:
            return None
        target = accuracy_target(selection, (self.first, self.second), self.wanted)
        return _gain(selection, self, target, self.measure)


@dataclass(frozen=True)
class AtEqualCost(Versus):
    """Accuracy at equal cost: that of the first minus that of the second."""

    measure: str
    wanted: float | None = None

    def evidence(self, results: Results) -> Evidence | None:
        selection = self.select(results, self.first, self.second, uncut=True)
        if selection is None:
            return None
        target = cost_target(selection, (self.first, self.second), self.measure, self.wanted)
        return _gain(selection, self, target, ACCURACY)


def _gain(selection: Selection, versus: Versus, target: Target | None, measure: str) -> Evidence:
    pairs = selection.pairs(versus.first, versus.second)
    if target is None or not pairs:
        return _nothing("a run diverged" if target is None else _NO_PAIR, selection)
    found = gain(selection, versus.first, versus.second, target, measure)
    if found is None:
        return _nothing(f"not all reach {target.text}", selection, len(pairs))
    unit = "points" if measure == ACCURACY else f"{UNITS[measure]} saved"
    evidence = _from(found, beats, selection.rounds, unit, target.text)
    return replace(evidence, target_reached=target.measure == ACCURACY)


@dataclass(frozen=True)
class TrainsLess(Versus):
    """Fraction of parameters that are not trained, if the accuracy is on par."""

    def evidence(self, results: Results) -> Evidence | None:
        selection = self.both(results)
        if selection is None:
            return None
        found = selection.difference(self.first, self.second)
        if found is None:
            return _nothing(_NO_PAIR, selection)
        ours, full = (selection.entries[name] for name in (self.first, self.second))
        less = 1 - ours.trained / full.trained
        shares = ", ".join(f"{words} {_change(ours, full, m)}" for m, words in _SHOWN.items())
        decision, towards = on_par(found)
        return Evidence(
            f"-{100 * less:.1f} % ({shares}); accuracy {found.estimate:+.2f}",
            interval_cell(found).partition(" ")[2] if found.low is not None else NONE,
            decision,
            towards,
            found.number,
            selection.rounds,
            better_or_worse(found),
            apart=apart(found),
            others=_others(selection, self.first, self.second, on_par),
        )


_SHOWN = {
    "bytes up": "upload",
    "bytes": "all bytes",
    "exact FLOPs": "exact FLOPs",
    "paper FLOPs": "FLOPs by the formula",
}


def _change(ours: Entry, full: Entry, measure: str) -> str:
    """Relative change of a cost over all rounds, in percent; seeds hardly differ in cost."""
    first, second = (
        fmean(MEASURES[measure](run.rounds[-1].total) for run in entry.histories.values())
        for entry in (ours, full)
    )
    return f"{100 * (first / second - 1):+.0f} %"
