"""Several groups of runs side by side: a table, and paired differences with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedplt.client import MetricInfo
from fedplt.comparison import cost_text, cost_to_reach, default_target, measures_of
from fedplt.federation import one_metric
from fedplt.report.page.chart import Chart, axis, label
from fedplt.report.page.curves import finals_of
from fedplt.report.page.runs import ShownRun
from fedplt.statistics import Interval, mean_interval, spread
from fedplt.tables import Table

Groups = Mapping[str, Sequence[ShownRun]]


def comparison_table(groups: Groups) -> Table:
    """Last, mean and test scores, and the cost until a common target."""
    metric = one_metric(run.history for runs in groups.values() for run in runs)
    target = default_target(metric, finals_of(groups))
    measures = measures_of(run.history for runs in groups.values() for run in runs)
    tested = any(run.history.test_score is not None for runs in groups.values() for run in runs)
    header = ["run", "seeds", f"last {metric.label}", f"{metric.label}, mean of last 10"]
    header += [f"test {metric.label}"] if tested else []
    rows = []
    for name, runs in groups.items():
        tests = [score for run in runs if (score := run.history.test_score) is not None]
        rows.append(
            (
                name,
                ", ".join(str(run.seed) for run in runs),
                _spread(metric, [run.history.last_score for run in runs]),
                _spread(metric, [run.history.final_score() for run in runs]),
                *([_spread(metric, tests)] if tested else []),
                *(_cost(runs, target, measure) for measure in measures),
            )
        )
    notes = (
        "Last: of the last evaluation; beside it the mean of the last 10 evaluations. Costs: "
        f"until {metric.name} "
        f"{metric.text(target)}, mean over the seeds that reach it. ±: sample standard deviation "
        "over seeds.",
    )
    columns = (*header, *(f"{measure} to target" for measure in measures))
    return Table("comparison", "Comparison", columns, tuple(rows), notes)


def _spread(metric: MetricInfo, values: Sequence[float]) -> str:
    if not values:
        return "-"
    found = spread(values)
    mean = metric.number(found.mean, 1)
    return mean if found.std is None else f"{mean} ± {metric.number(found.std, 1)}"


def _cost(runs: Sequence[ShownRun], target: float, measure: str) -> str:
    """The mean cost over the runs that reach the target, and how many never do."""
    found = [cost_to_reach(run.history, measure, target) for run in runs]
    costs = [cost for cost in found if cost is not None]
    if not costs:
        return "never"
    text = cost_text(measure, fmean(costs))
    missing = len(runs) - len(costs)
    return f"{text} ({missing} never)" if missing else text


def paired(first: Sequence[ShownRun], second: Sequence[ShownRun]) -> Interval | None:
    """Mean scores of the last 10 evaluations, second minus first, paired by seed.

    Only runs on one kind of processor are paired.
    """
    before = {run.seed: run for run in first}
    pairs = [
        (before[run.seed], run)
        for run in second
        if run.seed in before and _pair(before[run.seed], run)
    ]
    if not pairs:
        return None
    return mean_interval([b.history.final_score() - a.history.final_score() for a, b in pairs])


def _pair(first: ShownRun, second: ShownRun) -> bool:
    """Whether both runs used one kind of processor, as far as is known."""
    return len(first.processors | second.processors) <= 1


def differences_chart(groups: Groups) -> Chart | None:
    """Differences to the first group, with 95 % intervals; None for a single group."""
    reference, *others = groups
    metric = groups[reference][0].history.metric
    found = {
        name: interval
        for name in others
        if (interval := paired(groups[reference], groups[name])) is not None
    }
    if not found:
        return None
    ends = [
        (i.low, i.high) if i.low is not None and i.high is not None else (i.estimate, i.estimate)
        for i in found.values()
    ]
    estimates = [interval.estimate for interval in found.values()]
    ends = [(metric.scale * low, metric.scale * high) for low, high in ends]
    estimates = [metric.scale * estimate for estimate in estimates]
    trace = {
        "type": "scatter", "mode": "markers", "x": estimates,
        "y": [label(name) for name in found], "marker": {"size": 9}, "showlegend": False,
        "error_x": {
            "type": "data", "symmetric": False, "thickness": 1.5,
            "array": [high - e for (_, high), e in zip(ends, estimates, strict=True)],
            "arrayminus": [e - low for (low, _), e in zip(ends, estimates, strict=True)],
        },
        "customdata": [_interval_text(metric, interval) for interval in found.values()],
        "hovertemplate": "%{y}: %{customdata}<extra></extra>",
    }  # fmt: skip
    texts = [f"{name}: {_interval_text(metric, i)}" for name, i in found.items()]
    unit = "points" if metric.unit == "%" else metric.unit
    layout = {
        "xaxis": axis(f"{metric.name} minus that of {reference} ({unit})".replace(" ()", ""),
                      zeroline=True, zerolinewidth=2),
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True,
                  "range": [len(found) - 0.5, -0.5]},
    }  # fmt: skip
    layout["yaxis"].pop("autorange")
    note = (
        "Means of the last 10 evaluations, paired by seed, with 95 % intervals (Student's t). "
        + "; ".join(texts)
        + "."
    )
    title = f"Differences to {reference}"
    return Chart("differences", title, note, [trace], layout, note, 110 + 46 * len(found))


def _interval_text(metric: MetricInfo, interval: Interval) -> str:
    seeds = f"{interval.number} seed{'s' if interval.number > 1 else ''}"
    text = _signed(metric, interval.estimate)
    if interval.low is None or interval.high is None:
        return f"{text} ({seeds}: no interval)"
    return f"{text} [{_signed(metric, interval.low)}, {_signed(metric, interval.high)}] ({seeds})"


def _signed(metric: MetricInfo, difference: float) -> str:
    return ("+" if difference >= 0 else "") + metric.number(difference, 1)
