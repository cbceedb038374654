"""The curves of runs as columns: scores and losses of the evaluated rounds, and their costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from fedplt.comparison import default_target
from fedplt.federation import one_metric
from fedplt.report.page.chart import label, plain
from fedplt.report.page.runs import ShownRun

AXES = {
    "round": ("round", ""),
    "bytes_up": ("bytes uploaded by clients", "B"),
    "bytes": ("bytes sent, up and down", "B"),
    "flops": ("FLOPs, exact", "FLOP"),
    "paper_flops": ("FLOPs, the paper's model", "FLOP"),
    "simulated": ("simulated time on the devices", "s"),
    "measured": ("measured time here", "s"),
}
"""What curves can be drawn against, and its unit."""


def curves_of(groups: Mapping[str, Sequence[ShownRun]]) -> dict[str, Any]:
    """Everything that the main chart switches between; the page computes means and bands."""
    metric = one_metric(run.history for runs in groups.values() for run in runs)
    found: list[Any] = [
        {"label": label(name), "runs": [_run_columns(run) for run in runs]}
        for name, runs in groups.items()
    ]
    axes = [key for key in AXES if _is_known(found, "x", key)]
    values = {"score": metric.label, "loss": "validation loss", "train_loss": "training loss"}
    for group in found:
        for run in group["runs"]:
            run["x"] = {key: run["x"][key] for key in axes}
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


def finals_of(groups: Mapping[str, Sequence[ShownRun]]) -> list[list[float]]:
    """The final scores of each group's runs."""
    return [[run.history.final_score() for run in runs] for runs in groups.values()]


def _run_columns(run: ShownRun) -> dict[str, Any]:
    """One list per column, one entry per evaluated round."""
    ends = list(accumulate(record.seconds for record in run.history.rounds))
    kept = [
        (record, seconds)
        for record, seconds in zip(run.history.rounds, ends, strict=True)
        if record.score is not None
    ]
    return {
        "name": label(run.name),
        "seed": run.seed,
        "x": {
            "round": [record.round for record, _ in kept],
            "bytes_up": [record.total.bytes_up for record, _ in kept],
            "bytes": [record.total.bytes_up + record.total.bytes_down for record, _ in kept],
            "flops": [record.total.flops for record, _ in kept],
            "paper_flops": [record.total.paper_flops for record, _ in kept],
            "simulated": [record.total.simulated_seconds for record, _ in kept],
            "measured": [seconds for _, seconds in kept],
        },
        "y": {
            "score": [record.score for record, _ in kept],
            "loss": [record.loss for record, _ in kept],
            "train_loss": [record.train_loss for record, _ in kept],
        },
    }


def _is_known(groups: Sequence[Mapping[str, Any]], side: str, key: str) -> bool:
    """Whether a column has a value other than 0 and nothing in some run."""
    return any(
        value is not None and math.isfinite(value) and value != 0
        for group in groups
        for run in group["runs"]
        for value in run[side][key]
    )


def curve_alt(groups: Mapping[str, Sequence[ShownRun]]) -> str:
    """The main chart in a sentence."""
    metric = one_metric(run.history for runs in groups.values() for run in runs)
    parts = []
    for name, runs in groups.items():
        first = fmean(run.history.evaluated[0].score or 0.0 for run in runs)
        last = fmean(run.history.last_score for run in runs)
        parts.append(f"{name} from {metric.text(first)} to {metric.text(last)}")
    return f"{metric.name} by round: {'; '.join(parts)}."
