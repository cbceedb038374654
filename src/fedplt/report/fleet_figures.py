"""A fleet plan as bars: the parts of each device's round time, full training and planned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from fedplt.fleet import FleetPlan
from fedplt.report.figures import COLORS
from fedplt.text import seconds_text, shortened

PARTS = ("latency", "download", "forward", "backward", "upload")
MAX_DEVICES = 40
MAX_NAME = 28


def axis_end(totals: Sequence[float], target: float) -> float | None:
    """Where the time axis is cut so that one very slow device does not hide all others.

    None: the longest bar fits. The axis ends at four times the median bar, or after the target.

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
        chosen = np.unique(np.linspace(0, len(order) - 1, MAX_DEVICES).astype(int))
        entries = tuple(order[index] for index in chosen)
    figure = Figure(figsize=(8.4, 1.4 + 0.55 * len(entries)), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(entries))[::-1]
    totals = [time.total for entry in entries for time in (entry.full, entry.planned)]
    limit = axis_end(totals, plan.target_seconds)
    for shift, planned in ((0.2, False), (-0.2, True)):
        left = np.zeros(len(entries))
        for color, part in zip(["#9aa7b4", *COLORS], PARTS, strict=False):
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
    axes.axvline(plan.target_seconds, color="#1c2733", linewidth=1, linestyle="--")
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
