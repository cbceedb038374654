"""The results of a comparison: final scores, scores at equal cost, cost to reach a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Any

from fedplt.client import MetricInfo
from fedplt.comparison import (
    MEASURES,
    cost_text,
    cost_to_reach,
    default_target,
    mean_cost_text,
    measures_of,
    score_within,
    spread,
    spread_text,
)
from fedplt.federation import History, one_metric
from fedplt.text import REPR, SAMPLE_STD, Table, counted, html_text, latex, plain, shortened

FORMAT = 3


def refusals(history: History) -> str:
    """A sentence about refused client updates; empty if there are none."""
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
    """By seed; scores are those of the model that the run ends with."""
    trained: float
    """Mean fraction of the model that a client trains."""
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
    """For runs without an evaluated round: the reason, by method and seed."""

    @property
    def problems(self) -> list[str]:
        """One line per run that did not finish, with the reason."""
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
        """The largest budget that every method spends, per seed: the smallest total cost.

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
        """A score that most methods reach: a tenth worse than the best score."""
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
        for label, histories in self.histories.items():
            if models := " or ".join(sorted({run.final_model for run in histories} - {""})):
                caption += f";\n{label}: scores of the {models}"
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


def _run_json(history: History) -> dict[str, Any]:
    return {
        **({"final_model": history.final_model} if history.final_model else {}),
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
