"""The results of a comparison: final accuracy, accuracy at equal cost, cost to an accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedplt.federation import History, RoundRecord, Totals
from fedplt.text import SAMPLE_STD, bytes_text, flops_text, table

FORMAT = 2

MEASURES: dict[str, Callable[[Totals], float]] = {
    "bytes up": lambda total: total.bytes_up,
    "bytes": lambda total: total.bytes_up + total.bytes_down,
    "paper FLOPs": lambda total: total.paper_flops,
    "exact FLOPs": lambda total: total.flops,
}
"""The cost measures at which accuracies are compared."""


def accuracy_within(history: History, measure: str, budget: float) -> float | None:
    """Accuracy when a budget is spent, interpolated between the two nearest evaluated rounds.

    None if the first evaluated round costs more than the budget, or the last one less.
    """
    costs = [MEASURES[measure](record.total) for record in history.evaluated]
    if not costs or not costs[0] * (1 - 1e-9) <= budget <= costs[-1] * (1 + 1e-9):
        return None
    return float(np.interp(budget, costs, history.accuracy))


def cost_to_reach(history: History, measure: str, accuracy: float) -> float | None:
    """Total cost when an evaluated round first reaches this accuracy; None if none does."""
    reached = (r for r in history.evaluated if (r.accuracy or 0) >= accuracy)
    first = next(reached, None)
    return None if first is None else MEASURES[measure](first.total)


def refusals(history: History) -> str:
    """A sentence about the client updates that were refused; empty if none was."""
    rounds = [record for record in history.rounds if record.rejected]
    if not rounds:
        return ""
    number = sum(len(record.rejected) for record in rounds)
    when = [str(record.round) for record in (rounds[0], rounds[-1])]
    client, why = next(iter(rounds[0].rejected.items()))
    span = f"round {when[0]}" if len(rounds) == 1 else f"rounds {' to '.join(when)}"
    return f"{number} updates refused, {span}; the first, of client {client}: {why}"


@dataclass(frozen=True)
class Contestant:
    """A method with its options, its runs by seed, and why some of them ended early."""

    method: Mapping[str, Any]
    histories: Mapping[int, History]
    trained: float
    """Fraction of the model that a client trains, mean over the clients."""
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def finals(self) -> list[float]:
        """Mean accuracy of the last 10 evaluations, per seed."""
        return [history.final_accuracy() for history in self.histories.values()]


@dataclass(frozen=True)
class Comparison:
    """Contestants by label, on the same data, initial weights, fleet and rounds."""

    contestants: Mapping[str, Contestant]
    config: Mapping[str, Any]
    failed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Runs without an evaluated round, by method and seed: why."""

    @property
    def problems(self) -> list[str]:
        """One line per run that did not finish: why."""
        early = {label: c.failed for label, c in self.contestants.items()}
        return [
            f"{label}, seed {seed}: {what}: {why}"
            for what, runs in (("ended early", early), ("failed", self.failed))
            for label, reasons in runs.items()
            for seed, why in reasons.items()
        ]

    @property
    def refused(self) -> list[str]:
        """One line per run in which client updates were refused."""
        return [
            f"{label}, seed {seed}: {text}"
            for label, contestant in self.contestants.items()
            for seed, history in contestant.histories.items()
            if (text := refusals(history))
        ]

    @property
    def histories(self) -> dict[str, list[History]]:
        return {label: list(c.histories.values()) for label, c in self.contestants.items()}

    def budgets(self, measure: str) -> dict[int, float]:
        """The budget that every contestant spends: the smallest total cost, per seed.

        Splits, and so costs, differ from seed to seed. Runs that ended early are ignored, unless
        all of them ended early.
        """
        result = {}
        for seed in dict.fromkeys(seed for c in self.contestants.values() for seed in c.histories):
            runs = [c for c in self.contestants.values() if seed in c.histories]
            finished = [c for c in runs if seed not in c.failed]
            ends = [c.histories[seed].evaluated[-1].total for c in finished or runs]
            result[seed] = min(MEASURES[measure](total) for total in ends)
        return result

    def at_equal(self, measure: str) -> dict[str, list[float | None]]:
        """Accuracies within the common budgets, per contestant and seed."""
        budgets = self.budgets(measure)
        return {
            label: [accuracy_within(h, measure, budgets[s]) for s, h in c.histories.items()]
            for label, c in self.contestants.items()
        }

    def costs_to(self, accuracy: float, measure: str) -> dict[str, list[float | None]]:
        return {
            label: [cost_to_reach(h, measure, accuracy) for h in c.histories.values()]
            for label, c in self.contestants.items()
        }

    def default_target(self) -> float:
        """An accuracy that most contestants reach: 90 % of the best one's, in whole percent."""
        best = max(fmean(c.finals) for c in self.contestants.values())
        return int(90 * best) / 100

    def text(self, accuracy: float | None = None) -> str:
        """The results as printed tables."""
        target = self.default_target() if accuracy is None else accuracy
        parts = [
            f"accuracy in %, mean +- {SAMPLE_STD} over seeds;\n"
            "in the end: mean of the last 10 evaluations;\n"
            "<= costs: within the cost of the cheapest run of the same seed (shown: the mean)\n\n"
            + table(["method", "trained", "in the end", *self._equal_header()], self._rows()),
            f"cost until {100 * target:.0f} % accuracy, mean over the seeds that reach it\n\n"
            + table(["method", *MEASURES], self._cost_rows(target)),
        ]
        return "\n\n".join([*parts, *self.problems, *self.refused])

    def _shown(self, label: str) -> str:
        return label + (" (ended early)" if self.contestants[label].failed else "")

    def _equal_header(self) -> list[str]:
        budgets = {measure: fmean(self.budgets(measure).values()) for measure in MEASURES}
        return [f"{measure} <= {_cost_text(measure, cost)}" for measure, cost in budgets.items()]

    def _rows(self) -> list[list[str]]:
        equal = {measure: self.at_equal(measure) for measure in MEASURES}
        return [
            [
                self._shown(label),
                f"{contestant.trained:.1%}",
                _spread(contestant.finals),
                *(_spread(equal[measure][label]) for measure in MEASURES),
            ]
            for label, contestant in self.contestants.items()
        ]

    def _cost_rows(self, target: float) -> list[list[str]]:
        costs = {measure: self.costs_to(target, measure) for measure in MEASURES}
        rows = []
        for label in self.contestants:
            row = [self._shown(label)]
            for measure in MEASURES:
                reached = [cost for cost in costs[measure][label] if cost is not None]
                missing = len(costs[measure][label]) - len(reached)
                text = _cost_text(measure, fmean(reached)) if reached else "never"
                row.append(f"{text} ({missing} never)" if reached and missing else text)
            rows.append(row)
        return rows

    def to_json(self, accuracy: float | None = None) -> dict[str, Any]:
        """Everything as plain values: per contestant and seed, every evaluated round."""
        target = self.default_target() if accuracy is None else accuracy
        return {
            "format": FORMAT,
            "config": dict(self.config),
            "budgets": {measure: _by_seed(self.budgets(measure)) for measure in MEASURES},
            "target_accuracy": target,
            "methods": {label: self._contestant_json(label, target) for label in self.contestants},
            "failed": {label: _by_seed(reasons) for label, reasons in self.failed.items()},
        }

    def _contestant_json(self, label: str, target: float) -> dict[str, Any]:
        contestant = self.contestants[label]
        finals = contestant.finals
        return {
            "method": dict(contestant.method),
            "trained": contestant.trained,
            "accuracy_mean": fmean(finals),
            "accuracy_std": stdev(finals) if len(finals) > 1 else None,
            "accuracy_at_equal": {m: self.at_equal(m)[label] for m in MEASURES},
            "cost_to_target": {m: self.costs_to(target, m)[label] for m in MEASURES},
            "failed": _by_seed(contestant.failed),
            "runs": {
                str(seed): {
                    "accuracy_last_10": history.final_accuracy(),
                    "test_accuracy": history.test_accuracy,
                    "rounds": [_round_json(record) for record in history.evaluated],
                }
                for seed, history in contestant.histories.items()
            },
        }


def _round_json(record: RoundRecord) -> dict[str, Any]:
    accuracy, refused = record.accuracy, len(record.rejected)
    values = {"round": record.round, "accuracy": accuracy, "loss": record.loss, "refused": refused}
    return {**values, **vars(record.total)}


def _by_seed(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(seed): value for seed, value in values.items()}


def _spread(values: Sequence[float | None]) -> str:
    """Mean and sample standard deviation; the mean alone for a single value."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    mean = f"{fmean(known):.1f}"
    return f"{mean} +- {stdev(known):.1f}" if len(known) > 1 else mean


def _cost_text(measure: str, cost: float) -> str:
    return flops_text(cost) if "FLOPs" in measure else bytes_text(cost)
