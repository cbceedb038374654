"""The results of a comparison: final scores, scores at equal cost, cost to reach a score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np

from fedplt.client import MetricInfo
from fedplt.comparison.statistics import spread
from fedplt.federation import History, Totals, one_metric
from fedplt.text import (
    REPR,
    SAMPLE_STD,
    Table,
    bytes_text,
    counted,
    duration_text,
    flops_text,
    html_text,
    latex,
    plain,
    seconds_text,
    shortened,
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


def mean_cost_text(measure: str, costs: Sequence[float | None]) -> str:
    """The mean cost of the runs that reach a target, and how many never do.

    >>> mean_cost_text("bytes", [1000.0, None]), mean_cost_text("bytes", [None])
    ('1.0 kB (1 never)', 'never')
    """
    known = [cost for cost in costs if cost is not None]
    if not known:
        return "never"
    missing = len(costs) - len(known)
    return cost_text(measure, fmean(known)) + (f" ({missing} never)" if missing else "")


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
class MethodRuns:
    """A method with its options, the histories of its runs, and why some runs ended early."""

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
    """Methods by label, on the same data, initial weights, fleet and rounds."""

    methods: Mapping[str, MethodRuns]
    config: Mapping[str, Any]
    failed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Runs without an evaluated round, by method and seed: why."""

    @property
    def problems(self) -> list[str]:
        """One line per run that did not finish: why."""
        early = {label: c.failed for label, c in self.methods.items()}
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
            for label, runs in self.methods.items()
            for seed, history in runs.histories.items()
            if (text := refusals(history))
        ]

    @property
    def metric(self) -> MetricInfo:
        return one_metric(chain.from_iterable(self.histories.values()))

    @property
    def histories(self) -> dict[str, list[History]]:
        return {label: list(c.histories.values()) for label, c in self.methods.items()}

    @property
    def measures(self) -> list[str]:
        return measures_of(chain.from_iterable(self.histories.values()))

    def __repr__(self) -> str:
        scores = ", ".join(
            f"{label} {self.metric.text(fmean(c.finals))}" for label, c in self.methods.items()
        )
        return shortened(f"<Comparison by {self.metric.name}: {scores}>", REPR)

    def _repr_html_(self) -> str:
        return html_text(self.text())

    def budgets(self, measure: str) -> dict[int, float]:
        """The budget that every method spends: the smallest total cost, per seed.

        Splits, and so costs, differ from seed to seed. Runs that ended early are ignored, unless
        all of them ended early.
        """
        result = {}
        for seed in dict.fromkeys(seed for c in self.methods.values() for seed in c.histories):
            runs = [c for c in self.methods.values() if seed in c.histories]
            finished = [c for c in runs if seed not in c.failed]
            ends = [c.histories[seed].evaluated[-1].total for c in finished or runs]
            result[seed] = min(MEASURES[measure](total) for total in ends)
        return result

    def at_equal(self, measure: str) -> dict[str, list[float | None]]:
        """Scores within the common budgets, per method and seed."""
        budgets = self.budgets(measure)
        return {
            label: [score_within(h, measure, budgets[s]) for s, h in c.histories.items()]
            for label, c in self.methods.items()
        }

    def costs_to(self, target: float, measure: str) -> dict[str, list[float | None]]:
        return {
            label: [cost_to_reach(h, measure, target) for h in c.histories.values()]
            for label, c in self.methods.items()
        }

    def default_target(self) -> float:
        """A score that most methods reach: a tenth worse than the best one's."""
        return default_target(self.metric, [c.finals for c in self.methods.values()])

    def text(self, target: float | None = None) -> str:
        """The results as printed tables."""
        return "\n\n".join([*map(plain, self.tables(target)), *self.problems, *self.refused])

    def latex(self, target: float | None = None) -> str:
        """The same tables as LaTeX."""

        def typeset(text: str) -> str:
            return text.replace("+-", "±").replace("<=", "≤").replace("\n", " ")

        texts = []
        for made in self.tables(target):
            rows = tuple(tuple(map(typeset, row)) for row in made.rows)
            header = tuple(map(typeset, made.header))
            texts.append(latex(Table(made.name, typeset(made.title), header, rows)))
        return "\n".join(texts)

    def tables(self, target: float | None = None) -> list[Table]:
        """The scores, and the cost until a score is reached."""
        metric = self.metric
        target = self.default_target() if target is None else target
        shown = f"{metric.name} in {metric.unit}" if metric.unit else metric.name
        caption = (
            f"{shown}, mean +- {SAMPLE_STD} over seeds;\n"
            "last: of the last evaluation; last 10: mean of the last 10 evaluations;\n"
            "<= costs: within the cost of the cheapest run of the same seed (shown: the mean)"
        )
        budgets = {measure: fmean(self.budgets(measure).values()) for measure in self.measures}
        within = [f"{measure} <= {cost_text(measure, cost)}" for measure, cost in budgets.items()]
        costs = (
            f"cost until {metric.text(target, -1)} {metric.name}, mean over the seeds that reach it"
        )
        equal = {measure: self.at_equal(measure) for measure in self.measures}
        reached = {measure: self.costs_to(target, measure) for measure in self.measures}
        score_rows, cost_rows = [], []
        for label, runs in self.methods.items():
            name = label + (" (ended early)" if runs.failed else "")
            within_budgets = (spread_text(metric, s[label], sign="+-") for s in equal.values())
            means = (spread_text(metric, s, sign="+-") for s in (runs.lasts, runs.finals))
            score_rows.append((name, f"{runs.trained:.1%}", *means, *within_budgets))
            cost_rows.append((name, *(mean_cost_text(m, c[label]) for m, c in reached.items())))
        header = ("method", "trained", "last", "last 10", *within)
        return [
            Table("comparison-scores", caption, header, tuple(score_rows)),
            Table("comparison-costs", costs, ("method", *self.measures), tuple(cost_rows)),
        ]

    def to_json(self, target: float | None = None) -> dict[str, Any]:
        """Everything as plain values: per method and seed, every evaluated round."""
        target = self.default_target() if target is None else target
        return {
            "format": FORMAT,
            "metric": self.metric.to_json(),
            "config": dict(self.config),
            "budgets": {measure: by_seed(self.budgets(measure)) for measure in self.measures},
            "target": target,
            "methods": {label: self._method_json(label, target) for label in self.methods},
            "failed": {label: by_seed(reasons) for label, reasons in self.failed.items()},
        }

    def _method_json(self, label: str, target: float) -> dict[str, Any]:
        runs = self.methods[label]
        finals = spread(runs.finals)
        return {
            "method": dict(runs.method),
            "trained": runs.trained,
            "score_last_mean": fmean(runs.lasts),
            "score_mean": finals.mean,
            "score_std": finals.std,
            "score_at_equal": {m: self.at_equal(m)[label] for m in self.measures},
            "cost_to_target": {m: self.costs_to(target, m)[label] for m in self.measures},
            "failed": by_seed(runs.failed),
            "runs": by_seed({seed: _run_json(h) for seed, h in runs.histories.items()}),
        }


def spread_text(
    metric: MetricInfo,
    values: Iterable[float | None],
    more_digits: int = 0,
    *,
    sign: str = "±",
    unit: str = "",
) -> str:
    """Mean and sample standard deviation; the mean alone for a single value, - for none."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    found = spread(known)
    std = "" if found.std is None else f" {sign} {metric.number(found.std, more_digits)}"
    return f"{metric.number(found.mean, more_digits)}{std} {unit}".rstrip()


def default_target(metric: MetricInfo, finals: Iterable[Sequence[float]]) -> float:
    """A score that most reach: a tenth worse than the best mean; whole percent, or three digits."""
    best = metric.best(map(fmean, finals))
    if metric.unit == "%" and metric.direction == "higher":
        return int(90 * best) / 100
    worse = best - 0.1 * abs(best) if metric.direction == "higher" else best + 0.1 * abs(best)
    return float(f"{worse:.3g}")


def _run_json(history: History) -> dict[str, Any]:
    return {
        "score_last": history.last_score,
        "score_last_10": history.final_score(),
        "test_score": history.test_score,
        "rounds": [
            {
                "round": record.round,
                "score": record.score,
                "loss": record.loss,
                "refused": len(record.rejected),
                **vars(record.total),
            }
            for record in history.evaluated
        ],
    }


def by_seed(values: Mapping[int, Any]) -> dict[str, Any]:
    """For JSON, whose keys are texts."""
    return {str(seed): value for seed, value in values.items()}
