"""Scores of several runs: curves by round and cost, a table, paired differences with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from fedplt.client import MetricInfo
from fedplt.comparison import (
    Interval,
    cost_to_reach,
    default_target,
    mean_cost_text,
    mean_interval,
    measures_of,
    spread_text,
)
from fedplt.report.page.chart import Chart, axis, hover, label, plain
from fedplt.report.page.read_runs import Groups, ShownRun, final_model_of, metric_of, runs_of
from fedplt.text import Table, counted

AXES = {
    "round": ("round", "", ["round"]),
    "bytes_up": ("bytes uploaded by clients", "B", ["total_bytes_up"]),
    "bytes": ("bytes sent, up and down", "B", ["total_bytes_up", "total_bytes_down"]),
    "flops": ("FLOPs, exact", "FLOP", ["total_flops"]),
    "paper_flops": ("FLOPs, the paper's model", "FLOP", ["total_paper_flops"]),
    "simulated": ("simulated time on the devices", "s", ["total_simulated_seconds"]),
    "measured": ("measured time here", "s", ["total_seconds"]),
}
"""Quantities of the horizontal axis: name, unit, and the columns of a history that are summed."""


def curves_of(groups: Groups) -> dict[str, Any]:
    """Data for all views of the main chart; the page computes means and bands."""
    metric = metric_of(groups)
    found: list[Any] = [
        {"label": label(name), "runs": [_run_columns(run, is_average) for run in runs]}
        for name, runs, is_average in _curves(groups)
    ]
    axes = [key for key in AXES if _is_known(found, "x", key)]
    values = {"score": metric.label, "loss": "validation loss", "train_loss": "training loss"}
    return {
        "groups": plain(found),
        "axes": [{"key": key, "label": AXES[key][0], "unit": AXES[key][1]} for key in axes],
        "values": [
            {"key": key, "label": text}
            for key, text in values.items()
            if _is_known(found, "y", key)
        ],
        "metric": {
            "name": metric.name,
            "unit": metric.unit,
            "scale": metric.scale,
            "higher": metric.direction == "higher",
        },
        "target": default_target(metric, finals_of(groups)),
    }


def _curves(groups: Groups) -> Iterator[tuple[str, Sequence[ShownRun], bool]]:
    """Label and runs of each curve, and whether it is that of the average of models."""
    for name, runs in groups.items():
        if not final_model_of(runs):
            yield name, runs, False
        else:
            prefix = f"{name}, " if len(groups) > 1 else ""
            averages = [replace(run, history=run.history.of_average) for run in runs]
            yield f"{prefix}last model", runs, False
            if all(run.history.evaluated for run in averages):
                yield f"{prefix}average of models", averages, True


def finals_of(groups: Groups) -> list[list[float]]:
    """The final scores of each group's runs, of the models that they end with."""
    return [[run.history.shipped.final_score() for run in runs] for runs in groups.values()]


def _run_columns(run: ShownRun, is_average: bool) -> dict[str, Any]:
    """One list per column, one entry per evaluated round; an average has no training loss."""
    more = {"train_loss": None} if is_average else {}
    rows = [{**row, **more} for row in run.history.rows() if row["score"] is not None]
    return {
        "name": label(run.name),
        "seed": run.seed,
        "x": {
            key: [sum(row[column] for column in columns) for row in rows]
            for key, (_, _, columns) in AXES.items()
        },
        "y": {key: [row[key] for row in rows] for key in ("score", "loss", "train_loss")},
    }


def _is_known(groups: Sequence[Mapping[str, Any]], side: str, key: str) -> bool:
    """Whether a column has a value other than 0 and None in some run."""
    return any(
        value is not None and math.isfinite(value) and value != 0
        for group in groups
        for run in group["runs"]
        for value in run[side][key]
    )


def curve_alt(groups: Groups) -> str:
    """A sentence that describes the main chart."""
    metric = metric_of(groups)
    parts = []
    for name, runs, _ in _curves(groups):
        first = fmean(run.history.evaluated[0].score or 0.0 for run in runs)
        last = fmean(run.history.last_score for run in runs)
        parts.append(f"{name} from {metric.text(first)} to {metric.text(last)}")
    return f"{metric.name} by round: {'; '.join(parts)}."


def comparison_table(groups: Groups) -> Table:
    """Last, mean and test scores, and the cost until a common target."""
    metric = metric_of(groups)
    target = default_target(metric, finals_of(groups))
    measures = measures_of(run.history for run in runs_of(groups))
    tested = any(run.history.test_score is not None for run in runs_of(groups))
    header = ["run", "seeds", f"last {metric.label}", f"{metric.label}, mean of last 10"]
    header += [f"test {metric.label}"] if tested else []
    header += [f"{measure} to target" for measure in measures]
    rows = []
    for name, runs in groups.items():
        found = [run.history.shipped for run in runs]
        scores = [[h.last_score for h in found], [h.final_score() for h in found]]
        texts = [spread_text(metric, values, 1) for values in scores]
        texts += [spread_text(metric, (h.test_score for h in found), 1)] if tested else []
        costs = ([cost_to_reach(h, measure, target) for h in found] for measure in measures)
        seeds = ", ".join(str(run.seed) for run in runs)
        rows.append((name, seeds, *texts, *map(mean_cost_text, measures, costs)))
    notes: tuple[str, ...] = (
        "Last: of the last evaluation; beside it the mean of the last 10 evaluations. Costs: until "
        f"{metric.name} {metric.text(target)}, mean over the seeds that reach it. ±: sample "
        "standard deviation over seeds.",
    )
    for name, runs in groups.items():
        notes += (f"{name}: scores of the {model}.",) if (model := final_model_of(runs)) else ()
    return Table("comparison", "Comparison", tuple(header), tuple(rows), notes)


def paired(first: Sequence[ShownRun], second: Sequence[ShownRun]) -> Interval | None:
    """Mean scores of the last 10 evaluations, second minus first, paired by seed.

    Only runs on one kind of processor are paired.
    """
    before = {run.seed: run for run in first}
    differences = [
        run.history.shipped.final_score() - other.history.shipped.final_score()
        for run in second
        if (other := before.get(run.seed)) and len(other.processors | run.processors) <= 1
    ]
    return mean_interval(differences) if differences else None


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
    # Student's interval is symmetric.
    halves = [0 if i.high is None else i.high - i.estimate for i in found.values()]
    trace = {
        "type": "scatter", "mode": "markers",
        "x": [metric.scale * interval.estimate for interval in found.values()],
        "y": [label(name) for name in found], "marker": {"size": 9}, "showlegend": False,
        "error_x": {
            "type": "data", "thickness": 1.5, "array": [metric.scale * half for half in halves],
        },
        "customdata": [_interval_text(metric, interval) for interval in found.values()],
        "hovertemplate": hover("%{y}: %{customdata}"),
    }  # fmt: skip
    texts = [f"{name}: {_interval_text(metric, i)}" for name, i in found.items()]
    unit = "points" if metric.unit == "%" else metric.unit
    layout = {
        "xaxis": axis(f"{metric.name} minus that of {reference} ({unit})".replace(" ()", ""),
                      zeroline=True, zerolinewidth=2),
        "yaxis": {"type": "category", "range": [len(found) - 0.5, -0.5]},
    }  # fmt: skip
    note = (
        "Means of the last 10 evaluations, paired by seed, with 95 % intervals (Student's t). "
        f"{'; '.join(texts)}."
    )
    title = f"Differences to {reference}"
    return Chart("differences", title, note, [trace], layout, note, 110 + 46 * len(found))


def _interval_text(metric: MetricInfo, interval: Interval) -> str:
    seeds = counted(interval.number, "seed")
    text = _signed(metric, interval.estimate)
    if interval.low is None or interval.high is None:
        return f"{text} ({seeds}: no interval)"
    return f"{text} [{_signed(metric, interval.low)}, {_signed(metric, interval.high)}] ({seeds})"


def _signed(metric: MetricInfo, difference: float) -> str:
    return ("+" if difference >= 0 else "") + metric.number(difference, 1)
