"""Scores at equal cost, and the cost to reach a score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import numpy as np

from fedplt.client import MetricInfo
from fedplt.comparison.statistics import spread
from fedplt.federation import History, Totals
from fedplt.text import bytes_text, duration_text, flops_text, seconds_text

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
