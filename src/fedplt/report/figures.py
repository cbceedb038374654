"""Figures: curves of scores, which client trains which sub-layer, and the devices of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedplt.client import MetricInfo
from fedplt.comparison import MEASURES
from fedplt.errors import FedpltError
from fedplt.federation import History, RoundRecord, one_metric
from fedplt.fleet import FleetPlan
from fedplt.planning import Plan
from fedplt.report.page.chart import evenly
from fedplt.report.palette import EMPTY, GRID, INK, MUTED, SERIES
from fedplt.text import seconds_text, short_names, shortened

Cost = Callable[[RoundRecord], float]
MAX_ROWS = 300
FEW_POINTS = 20
"""Curves with fewer evaluations mark each one with a dot."""


def score_axis(axes: Any, histories: Mapping[str, Sequence[History]]) -> MetricInfo:
    """Label the vertical axis with the metric of these histories, and return it."""
    metric = one_metric(history for group in histories.values() for history in group)
    axes.set(xlabel="round", ylabel=f"validation {metric.label}")
    axes.xaxis.get_major_locator().set_params(integer=True)  # there is no round 4.5
    if metric.shown_limits:
        axes.set(ylim=metric.shown_limits)
    return metric


def style_axes(axes: Any) -> None:
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_scores(axes: Any, group: Sequence[History], cost: Cost, band: float, **line: Any) -> None:
    """Scores against the cost of their rounds: the mean over seeds, and their range as a band."""
    number = min(len(history.scores) for history in group)
    x = np.mean([[cost(r) for r in history.evaluated[:number]] for history in group], axis=0)
    values = group[0].metric.scale * np.array([history.scores[:number] for history in group])
    marker = "o" if len(x) < FEW_POINTS else ""
    line |= {"linewidth": 1.6, "marker": marker, "markersize": 4}
    axes.plot(x, values.mean(axis=0), **line)
    if len(values) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(x, low, high, color=line["color"], alpha=band, linewidth=0)


def score_figure(histories: Mapping[str, Sequence[History]]) -> Figure:
    """Scores by round; several histories of one label (seeds) are drawn as mean and spread."""
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.add_subplot()
    metric = score_axis(axes, histories)
    for color, (label, group) in zip(cycle(SERIES), histories.items(), strict=False):
        _draw_scores(axes, group, lambda record: record.round, band=0.2, color=color, label=label)
    style_axes(axes)
    if len(histories) > 1 or next(iter(histories)):
        axes.legend(
            frameon=False, loc="lower right" if metric.direction == "higher" else "upper right"
        )
    return figure


def comparison_figure(
    histories: Mapping[str, Sequence[History]], *, upload_only: bool = False
) -> Figure:
    """Scores by round and by bytes sent up and down; means over seeds, with their spread."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    score_axis(left, histories)
    sent = MEASURES["bytes up" if upload_only else "bytes"]
    for index, (color, (label, group)) in enumerate(zip(cycle(SERIES), histories.items())):
        # Every second curve is dashed and drawn on top, so that equal curves are both visible.
        style: dict[str, Any] = {"color": color, "linestyle": "--" if index % 2 else "-"}
        style |= {"label": label, "zorder": 3 - index / len(histories)}
        _draw_scores(left, group, lambda record: record.round, band=0.15, **style)
        _draw_scores(right, group, lambda record: sent(record.total) / 1e9, band=0.15, **style)
    right.set(xlabel="GB uploaded by clients" if upload_only else "GB sent to and from clients")
    for axes in (left, right):
        style_axes(axes)
    left.legend(frameon=False, loc="best")
    return figure


def plan_figure(plan: Plan) -> Figure:
    """Clients (rows) by sub-layers (columns) for every layer; the color is the client's ratio."""
    clients = evenly(plan.num_clients, MAX_ROWS)
    ratios = np.unique(-plan.ratios[clients])
    shown = -ratios if len(ratios) <= len(SERIES) else np.empty(0)
    width = max(7.2, 2.2 * len(plan.layers))
    figure = Figure(figsize=(width, 1.6 + 0.05 * min(len(clients), 80)), layout="constrained")
    panels: Any = figure.subplots(1, len(plan.layers), squeeze=False, sharey=True)[0]
    colors = ListedColormap([EMPTY, *SERIES])
    assignments = [plan.assignment(client) for client in clients]
    names = short_names([layer.name for layer in plan.layers], 20)
    for index, (axes, layer) in enumerate(zip(panels, plan.layers, strict=True)):
        picture = np.zeros((len(clients), layer.num_sublayers), dtype=np.uint8)
        for row, (client, assignment) in enumerate(zip(clients, assignments, strict=True)):
            group = np.flatnonzero(np.isclose(shown, plan.ratios[client]))
            for part in assignment.slices[index]:
                picture[row, part.start : part.stop] = 1 + (int(group[0]) if len(group) else 0)
        axes.imshow(
            picture, aspect="auto", interpolation="nearest", cmap=colors, vmin=0, vmax=len(SERIES)
        )
        axes.set_title(f"{names[index]} ({layer.size:,})", fontsize=9)
        axes.set_xlabel("sub-layer", fontsize=8)
        axes.tick_params(labelsize=7)
    panels[0].set_ylabel("client" if len(clients) == plan.num_clients else "client (a sample)")
    patches = [Patch(color=c, label=f"ratio {r:g}") for c, r in zip(SERIES, shown, strict=False)]
    if patches:
        figure.legend(handles=patches, loc="outside lower center", ncols=8, frameon=False)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Save as PNG, SVG or PDF, chosen by the file's suffix."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise FedpltError(f"{path}: a picture is saved as .png, .svg or .pdf; choose one of these.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


PARTS = ("latency", "download", "forward", "backward", "upload")
MAX_DEVICES = 40
MAX_NAME = 28


def axis_end(totals: Sequence[float], target: float) -> float | None:
    """The end of the time axis, so that one very slow device does not hide all others.

    Four times the median bar, or just after the target; None if the longest bar fits.

    >>> axis_end([1.0, 2.0, 3.0, 300.0], 1.5), axis_end([1.0, 2.0, 3.0, 4.0], 1.5)
    (8.0, None)
    """
    middle = sorted(totals)[(len(totals) - 1) // 2]
    end = max(4 * middle, 1.3 * target)
    return end if max(totals) > 2 * end else None


def fleet_figure(plan: FleetPlan) -> Figure:
    """Two bars per device, full training (pale) above planned, and the target as a line."""
    entries = plan.devices
    if len(entries) > MAX_DEVICES:  # an even sample, with the extremes
        order = sorted(entries, key=lambda entry: entry.full.total)
        entries = tuple(order[index] for index in evenly(len(order), MAX_DEVICES))
    figure = Figure(figsize=(8.4, 1.4 + 0.55 * len(entries)), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(entries))[::-1]
    totals = [time.total for entry in entries for time in (entry.full, entry.planned)]
    limit = axis_end(totals, plan.target_seconds)
    for shift, planned in ((0.2, False), (-0.2, True)):
        left = np.zeros(len(entries))
        for color, part in zip([MUTED, *SERIES], PARTS, strict=False):
            times = [entry.planned if planned else entry.full for entry in entries]
            seconds = np.array([getattr(time, part) for time in times])
            axes.barh(
                places + shift, seconds, 0.36,
                left=left, color=color,
                alpha=1.0 if planned else 0.4, label=part if planned else None,
            )  # fmt: skip
            left += seconds
        for place, end, entry in zip(places, left, entries, strict=True):
            text = f" ratio {entry.ratio:.3g}" if planned else " full"
            text += " (late)" if planned and not entry.feasible else ""
            if limit is not None and end > limit:
                text += f", {seconds_text(end)} s \N{RIGHTWARDS ARROW}"
                box = {"color": "white", "alpha": 0.8, "pad": 0.5}
                axes.text(limit, place + shift, text, va="center", ha="right", fontsize=7, bbox=box)
            else:
                axes.text(end, place + shift, text, va="center", fontsize=7)
    axes.axvline(plan.target_seconds, color=INK, linewidth=1, linestyle="--")
    label = f" target {plan.target_seconds:.3g} s"
    axes.text(plan.target_seconds, len(entries) - 0.45, label, fontsize=8)
    names = [
        shortened(entry.device.name, MAX_NAME)
        + (f" ({entry.device.count})" if entry.device.count > 1 else "")
        for entry in entries
    ]
    axes.set_yticks(places, names, fontsize=8)
    axes.set(xlabel="seconds per round", ylim=(-0.6, len(entries) - 0.2))
    if limit is None:
        axes.margins(x=0.12)
    else:
        axes.set_xlim(0, limit)
        axes.set_xlabel("seconds per round (longer bars are cut)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(PARTS), frameon=False, fontsize=8)
    return figure
