"""Figure of the measured distance to the optimum and the bound."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedplt.report.figures import COLORS
from fedplt.theory import CONFIDENCE, TheoryReport


def theory_figure(report: TheoryReport) -> Figure:
    """Distance and bound, log scale; a vertical line marks where a condition first fails."""
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.add_subplot()
    rounds = np.arange(len(report.distances)) / report.local_steps
    axes.semilogy(rounds, report.distances, color=COLORS[0], label="measured")
    if report.intervals is not None and len(report.samples) > 1:
        low, high = report.intervals
        label = f"{100 * CONFIDENCE:g} % intervals of the mean"
        axes.fill_between(rounds, low, high, color=COLORS[0], alpha=0.25, linewidth=0, label=label)
    if report.bounds is not None:
        style = "-" if report.all_hold else "--"
        label = "bound" if report.all_hold else "bound (conditions fail)"
        axes.semilogy(rounds, report.bounds, color=COLORS[1], linestyle=style, label=label)
    failures = [
        (condition.first_failure, condition.name)
        for condition in report.conditions
        if condition.first_failure is not None
    ]
    for color, (step, name) in zip(COLORS[4:], sorted(failures), strict=False):
        place = step / report.local_steps
        axes.axvline(place, color=color, linewidth=1, linestyle=":", label=f"fails: {name}")
    axes.set(xlabel="round", ylabel="squared distance to the optimum")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
