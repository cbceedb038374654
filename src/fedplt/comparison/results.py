"""The results of a comparison: final scores, scores at equal cost, cost to reach a score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedplt.client import MetricInfo
from fedplt.federation import History, RoundRecord, Totals, one_metric
from fedplt.tables import Table, latex
from fedplt.text import (
    REPR,
    SAMPLE_STD,
    bytes_text,
    counted,
    duration_text,
    flops_text,
    html_text,
    seconds_text,
    shortened,
    table,
)

FORMAT = 3

MEASURES: dict[str, Callable[[Totals], float]] = {
    "bytes up": lambda total: total.bytes_up,
    "bytes": lambda total: total.bytes_up + total.bytes_down,
    "paper FLOPs": lambda total: total.paper_flops,
    "exact FLOPs": lambda total: total.flops,
    "simulated time": lambda total: total.simulated_seconds,
}
"""The cost measures at which scores are compared."""


def measures_of(histories: Iterable[History]) -> list[str]:
    """The measures that some run has: simulated time is known with ``[fleet]`` only."""
    ends = [history.rounds[-1].total for history in histories if history.rounds]
    return [name for name, cost in MEASURES.items() if any(map(cost, ends))]


def cost_text(measure: str, cost: float) -> str:
    """A cost in the unit of its measure.

    >>> cost_text("bytes", 25_321_880), cost_text("simulated time", 6.53)
    ('25.3 MB', '6.53 s')
    """
    if measure == "simulated time":
        return f"{seconds_text(cost)} s" if cost < 60 else duration_text(cost)
    return flops_text(cost) if "FLOPs" in measure else bytes_text(cost)


def score_within(history: History, measure: str, budget: float) -> float | None:
    """Score when a budget is spent, interpolated between the two nearest evaluated rounds.

    None if the first evaluated round costs more than the budget, or the last one less.
    """
    costs = [MEASURES[measure](record.total) for record in history.evaluated]
    if not costs or not costs[0] * (1 - 1e-9) <= budget <= costs[-1] * (1 + 1e-9):
        return None
    return float(np.interp(budget, costs, history.scores))


def cost_to_reach(history: History, measure: str, target: float) -> float | None:
    """Total cost when an evaluated round first reaches this score; None if none does."""
    metric = history.metric
    reached = (r for r in history.evaluated if metric.reaches(r.score or 0.0, target))
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
    return f"{counted(number, 'update')} refused, {span}; the first, of client {client}: {why}"


@dataclass(frozen=True)
class Contestant:
    """A method with its options, its runs by seed, and why some of them ended early."""

    method: Mapping[str, Any]
    histories: Mapping[int, History]
    trained: float
    """Fraction of the model that a client trains, mean over the clients."""
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def lasts(self) -> list[float]:
        """Score of the last evaluation, per seed."""
        return [history.last_score for history in self.histories.values()]

    @property
    def finals(self) -> list[float]:
        """Mean score of the last 10 evaluations, per seed."""
        return [history.final_score() for history in self.histories.values()]


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
    def metric(self) -> MetricInfo:
        return one_metric(h for c in self.contestants.values() for h in c.histories.values())

    @property
    def histories(self) -> dict[str, list[History]]:
        return {label: list(c.histories.values()) for label, c in self.contestants.items()}

    @property
    def measures(self) -> list[str]:
        return measures_of(h for c in self.contestants.values() for h in c.histories.values())

    def __repr__(self) -> str:
        scores = ", ".join(
            f"{label} {self.metric.text(fmean(c.finals))}" for label, c in self.contestants.items()
        )
        return shortened(f"<Comparison by {self.metric.name}: {scores}>", REPR)

    def _repr_html_(self) -> str:
        return html_text(self.text())

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
        """Scores within the common budgets, per contestant and seed."""
        budgets = self.budgets(measure)
        return {
            label: [score_within(h, measure, budgets[s]) for s, h in c.histories.items()]
            for label, c in self.contestants.items()
        }

    def costs_to(self, target: float, measure: str) -> dict[str, list[float | None]]:
        return {
            label: [cost_to_reach(h, measure, target) for h in c.histories.values()]
            for label, c in self.contestants.items()
        }

    def default_target(self) -> float:
        """A score that most contestants reach: a tenth worse than the best one's."""
        return default_target(self.metric, [c.finals for c in self.contestants.values()])

    def text(self, target: float | None = None) -> str:
        """The results as printed tables."""
        tables = [f"{title}\n\n{table(head, rows)}" for title, head, rows in self.tables(target)]
        return "\n\n".join([*tables, *self.problems, *self.refused])

    def tables(self, target: float | None = None) -> list[tuple[str, list[str], list[list[str]]]]:
        """Title, header and rows: the scores, and the cost until a score is reached."""
        metric = self.metric
        target = self.default_target() if target is None else target
        wanted = f"{metric.text(target, -1)} {metric.name}"
        shown = f"{metric.name} in {metric.unit}" if metric.unit else metric.name
        scores = (
            f"{shown}, mean +- {SAMPLE_STD} over seeds;\n"
            "last: of the last evaluation; last 10: mean of the last 10 evaluations;\n"
            "<= costs: within the cost of the cheapest run of the same seed (shown: the mean)"
        )
        header = ["method", "trained", "last", "last 10", *self._equal_header()]
        costs = f"cost until {wanted}, mean over the seeds that reach it"
        return [
            (scores, header, self._rows()),
            (costs, ["method", *self.measures], self._cost_rows(target)),
        ]

    def latex(self, target: float | None = None) -> str:
        """The tables of ``fedplt compare``, as LaTeX."""

        def written(text: str) -> str:
            return text.replace("+-", "±").replace("<=", "≤").replace("\n", " ")

        return "\n".join(
            latex(
                Table(
                    f"comparison-{name}",
                    written(title),
                    tuple(map(written, header)),
                    tuple(tuple(map(written, row)) for row in rows),
                )
            )
            for name, (title, header, rows) in zip(
                ("scores", "costs"), self.tables(target), strict=True
            )
        )

    def _shown(self, label: str) -> str:
        return label + (" (ended early)" if self.contestants[label].failed else "")

    def _equal_header(self) -> list[str]:
        budgets = {measure: fmean(self.budgets(measure).values()) for measure in self.measures}
        return [f"{measure} <= {cost_text(measure, cost)}" for measure, cost in budgets.items()]

    def _rows(self) -> list[list[str]]:
        equal = {measure: self.at_equal(measure) for measure in self.measures}
        return [
            [
                self._shown(label),
                f"{contestant.trained:.1%}",
                self._spread(contestant.lasts),
                self._spread(contestant.finals),
                *(self._spread(equal[measure][label]) for measure in self.measures),
            ]
            for label, contestant in self.contestants.items()
        ]

    def _cost_rows(self, target: float) -> list[list[str]]:
        costs = {measure: self.costs_to(target, measure) for measure in self.measures}
        rows = []
        for label in self.contestants:
            row = [self._shown(label)]
            for measure in self.measures:
                reached = [cost for cost in costs[measure][label] if cost is not None]
                missing = len(costs[measure][label]) - len(reached)
                text = cost_text(measure, fmean(reached)) if reached else "never"
                row.append(f"{text} ({missing} never)" if reached and missing else text)
            rows.append(row)
        return rows

    def _spread(self, values: Sequence[float | None]) -> str:
        """Mean and sample standard deviation; the mean alone for a single value."""
        known = [value for value in values if value is not None]
        if not known:
            return "-"
        mean = self.metric.number(fmean(known))
        return f"{mean} +- {self.metric.number(stdev(known))}" if len(known) > 1 else mean

    def to_json(self, target: float | None = None) -> dict[str, Any]:
        """Everything as plain values: per contestant and seed, every evaluated round."""
        target = self.default_target() if target is None else target
        return {
            "format": FORMAT,
            "metric": self.metric.to_json(),
            "config": dict(self.config),
            "budgets": {measure: _by_seed(self.budgets(measure)) for measure in self.measures},
            "target": target,
            "methods": {label: self._contestant_json(label, target) for label in self.contestants},
            "failed": {label: _by_seed(reasons) for label, reasons in self.failed.items()},
        }

    def _contestant_json(self, label: str, target: float) -> dict[str, Any]:
        contestant = self.contestants[label]
        finals = contestant.finals
        return {
            "method": dict(contestant.method),
            "trained": contestant.trained,
            "score_last_mean": fmean(contestant.lasts),
            "score_mean": fmean(finals),
            "score_std": stdev(finals) if len(finals) > 1 else None,
            "score_at_equal": {m: self.at_equal(m)[label] for m in self.measures},
            "cost_to_target": {m: self.costs_to(target, m)[label] for m in self.measures},
            "failed": _by_seed(contestant.failed),
            "runs": {
                str(seed): {
                    "score_last": history.last_score,
                    "score_last_10": history.final_score(),
                    "test_score": history.test_score,
                    "rounds": [_round_json(record) for record in history.evaluated],
                }
                for seed, history in contestant.histories.items()
            },
        }


def default_target(metric: MetricInfo, finals: Iterable[Sequence[float]]) -> float:
    """A score that most reach: a tenth worse than the best mean; whole percent, or three digits."""
    best = metric.best(map(fmean, finals))
    if metric.unit == "%" and metric.direction == "higher":
        return int(90 * best) / 100
    worse = best - 0.1 * abs(best) if metric.direction == "higher" else best + 0.1 * abs(best)
    return float(f"{worse:.3g}")


def _round_json(record: RoundRecord) -> dict[str, Any]:
    score, refused = record.score, len(record.rejected)
    values = {"round": record.round, "score": score, "loss": record.loss, "refused": refused}
    return {**values, **vars(record.total)}


def _by_seed(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(seed): value for seed, value in values.items()}
