"""Several groups of runs side by side: a table, and paired differences with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedplt.comparison import MEASURES
from fedplt.experiments import Interval, Table, mean_interval, spread
from fedplt.report.page.chart import Chart, axis, label
from fedplt.report.page.curves import default_target
from fedplt.report.page.runs import ShownRun
from fedplt.report.page.scores import Metric, final_score, metric_of, score_of, test_score
from fedplt.text import bytes_text, flops_text

Groups = Mapping[str, Sequence[ShownRun]]


def comparison_table(groups: Groups) -> Table:
    """Final and test scores, and the cost until a common target."""
    metric = metric_of(next(iter(groups.values()))[0].history)
    target = default_target(metric, groups)
    tested = any(test_score(run.history) is not None for runs in groups.values() for run in runs)
    header = ["run", "seeds", f"final {metric.label}"]
    header += [f"test {metric.label}"] if tested else []
    rows = []
    for name, runs in groups.items():
        tests = [score for run in runs if (score := test_score(run.history)) is not None]
        rows.append(
            (
                name,
                ", ".join(str(run.seed) for run in runs),
                _spread(metric, [final_score(run.history) for run in runs]),
                *([_spread(metric, tests)] if tested else []),
                *(_cost(metric, runs, target, measure) for measure in MEASURES),
            )
        )
    notes = (
        f"Final: mean of the last 10 evaluations. Costs: until {metric.name} "
        f"{metric.text(target)}, mean over the seeds that reach it. ±: sample standard deviation "
        "over seeds.",
    )
    columns = (*header, *(f"{measure} to target" for measure in MEASURES))
    return Table("comparison", "Comparison", columns, tuple(rows), notes)


def _spread(metric: Metric, values: Sequence[float]) -> str:
    if not values:
        return "-"
    found = spread([metric.scale * value for value in values])
    mean = f"{found.mean:.{metric.digits}f}"
    return mean if found.std is None else f"{mean} ± {found.std:.{metric.digits}f}"


def _cost(metric: Metric, runs: Sequence[ShownRun], target: float, measure: str) -> str:
    """The mean cost over the runs that reach the target, and how many never do."""
    costs = [cost for run in runs if (cost := cost_until(metric, run, target, measure)) is not None]
    if not costs:
        return "never"
    text = (flops_text if "FLOPs" in measure else bytes_text)(fmean(costs))
    missing = len(runs) - len(costs)
    return f"{text} ({missing} never)" if missing else text


def cost_until(metric: Metric, run: ShownRun, target: float, measure: str) -> float | None:
    """Total cost when an evaluated round first reaches the target; None if none does."""
    for record in run.history.evaluated:
        score = score_of(record)
        if score is not None and metric.reaches(score, target):
            return MEASURES[measure](record.total)
    return None


def paired(
    metric: Metric, first: Sequence[ShownRun], second: Sequence[ShownRun]
) -> Interval | None:
    """Final scores of the second minus the first, paired by seed on one kind of processor."""
    before = {run.seed: run for run in first}
    pairs = [
        (before[run.seed], run)
        for run in second
        if run.seed in before and _pair(before[run.seed], run)
    ]
    if not pairs:
        return None
    scores = [final_score(b.history) - final_score(a.history) for a, b in pairs]
    return mean_interval([metric.scale * score for score in scores])


def _pair(first: ShownRun, second: ShownRun) -> bool:
    """Whether both runs used one kind of processor, as far as is known."""
    return len(first.processors | second.processors) <= 1


def differences_chart(groups: Groups) -> Chart | None:
    """Differences to the first group, with 95 % intervals; None for a single group."""
    reference, *others = groups
    metric = metric_of(groups[reference][0].history)
    found = {
        name: interval
        for name in others
        if (interval := paired(metric, groups[reference], groups[name])) is not None
    }
    if not found:
        return None
    ends = [
        (i.low, i.high) if i.low is not None and i.high is not None else (i.estimate, i.estimate)
        for i in found.values()
    ]
    estimates = [interval.estimate for interval in found.values()]
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
    note = "Paired by seed, with 95 % intervals (Student's t). " + "; ".join(texts) + "."
    title = f"Differences to {reference}"
    return Chart("differences", title, note, [trace], layout, note, 110 + 46 * len(found))


def _interval_text(metric: Metric, interval: Interval) -> str:
    seeds = f"{interval.number} seed{'s' if interval.number > 1 else ''}"
    text = f"{interval.estimate:+.{metric.digits}f}"
    if interval.low is None or interval.high is None:
        return f"{text} ({seeds}: no interval)"
    low, high = (f"{end:+.{metric.digits}f}" for end in (interval.low, interval.high))
    return f"{text} [{low}, {high}] ({seeds})"
