"""Figures of the experiments; the same data gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedplt.files import write_atomically
from fedplt.report.figures import comparison_figure, style_axes
from fedplt.report.palette import SERIES
from reproduction.pages import DYNAMICS, Page
from reproduction.selection import Entry, Selection

_METADATA = {".png": {"Software": None}, ".svg": {"Creator": None, "Date": None}}
"""No versions and dates, which would change the files."""
LEGEND_LETTERS = 150
"""How many legend entries fit side by side."""


def write_figures(folder: Path, page: Page) -> None:
    """All figures of a page, as PNG and SVG."""
    figures = {name: selection_figure(selection) for name, selection in page.figures.items()}
    if page.block.experiment == "study":
        [selection] = page.figures.values()
        drawn = (model_figure(selection), layers_figure(selection))
        figures |= dict(zip(DYNAMICS, drawn, strict=True))
    for name, figure in figures.items():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout is done: do not repeat it per format
        for ending in _METADATA:
            save_exactly(figure, folder / f"{name}{ending}")


def selection_figure(selection: Selection) -> Figure:
    """Accuracy by round and by communication; lines are means over seeds, bands their range."""
    groups = {
        entry.label: [*entry.histories.values()]
        for entry in selection.entries.values()
        if entry.histories
    }
    figure = comparison_figure(groups, upload_only=selection.experiment == "exp3")
    left = figure.axes[0]
    handles, labels = left.get_legend_handles_labels()
    left.legend().remove()  # seven names would hide the curves
    ncols = min(4, len(labels), LEGEND_LETTERS // (8 + max(map(len, labels))))
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, frameon=False)
    left.set_ylim(*_range([history.scores for runs in groups.values() for history in runs]))
    return figure


def _range(runs: list[list[float]]) -> tuple[float, float]:
    """Axis limits in percent, multiples of 5; cuts off the steep start of the curves."""
    late = np.concatenate([np.asarray(run)[len(run) // 10 :] for run in runs])
    return (
        max(0.0, 5 * np.floor(20 * late.min())),
        min(100.0, 5 * np.ceil(20 * max(map(max, runs)))),
    )


def save_exactly(figure: Figure, path: Path) -> None:
    """Save without dates, versions and random identifiers: the same figure, the same bytes."""
    metadata = _METADATA[path.suffix]
    with mpl.rc_context({"svg.hashsalt": "fedplt", "svg.fonttype": "none"}):
        write_atomically(
            path,
            lambda scratch: figure.savefig(
                scratch, format=path.suffix[1:], dpi=110, metadata=metadata
            ),
        )


def model_figure(selection: Selection) -> Figure:
    """Update norm, effective perturbation and accuracy by round, one line per configuration.

    Lines are means over seeds, bands their range.
    """
    figure = Figure(figsize=(12.5, 3.6), layout="constrained")
    panels: Any = figure.subplots(1, 3)
    for color, entry in zip(cycle(SERIES), _shown(selection), strict=False):
        series = [run.dynamics for run in entry.runs.values()]
        for axes, name in zip(panels, ("update_norm", "effective_perturbation"), strict=False):
            curves = [dict(zip(s.rounds, getattr(s, name), strict=True)) for s in series]
            _draw(axes, selection, curves, color=color)
        accuracy = [
            {record.round: 100 * (record.score or 0.0) for record in history.evaluated}
            for history in entry.histories.values()
        ]
        _draw(panels[2], selection, accuracy, color=color, label=entry.label)
    for axes, name in zip(panels, ("update norm", "effective perturbation"), strict=False):
        axes.set(xlabel="round", ylabel=name)
        _say_if_empty(axes)
    panels[0].set_ylim(bottom=0)
    panels[1].set_ylim(0, 1.02)
    panels[2].set(xlabel="round", ylabel="validation accuracy (%)", ylim=(0, 100))
    _tidy(panels)
    if panels[2].lines:
        columns = len(panels[2].lines)
        figure.legend(loc="outside upper center", ncols=columns, frameon=False)
    return figure


def layers_figure(selection: Selection) -> Figure:
    """Effective perturbation of every layer, one panel per configuration; means over seeds."""
    entries = _shown(selection)
    figure = Figure(figsize=(4.2 * max(1, len(entries)), 3.6), layout="constrained")
    panels: Any = figure.subplots(1, max(1, len(entries)), sharey=True, squeeze=False)[0]
    for axes, entry in zip(panels, entries, strict=False):
        series = [run.dynamics for run in entry.runs.values()]
        layers = dict.fromkeys(name for s in series for name in s.layer_effective_perturbation)
        for color, layer in zip(cycle(SERIES), layers, strict=False):
            curves = [
                dict(zip(s.rounds, s.layer_effective_perturbation[layer], strict=True))
                for s in series
                if layer in s.layer_effective_perturbation
            ]
            _draw(axes, selection, curves, band=False, color=color, label=layer)
        _say_if_empty(axes)
        axes.set_title(entry.label, fontsize=10)
        axes.set(xlabel="round", ylim=(0, 1.02))
    panels[0].set_ylabel("effective perturbation")
    _tidy(panels)
    handles, names = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside upper center", ncols=8, frameon=False)
    return figure


def _shown(selection: Selection) -> list[Entry]:
    return [entry for entry in selection.entries.values() if entry.runs]


def _draw(
    axes: Any,
    selection: Selection,
    curves: Sequence[dict[int, float]],
    *,
    band: bool = True,
    **style: Any,
) -> None:
    """Mean of some curves over the rounds that all of them have, and their range."""
    if not curves:
        return
    common = set.intersection(*(set(curve) for curve in curves))
    rounds = [number for number in sorted(common) if number <= selection.rounds]
    if not rounds:
        return
    values: NDArray[np.float64] = np.array([[curve[n] for n in rounds] for curve in curves])
    axes.plot(rounds, values.mean(axis=0), linewidth=1.4, **style)
    if band and len(curves) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(rounds, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _say_if_empty(axes: Any) -> None:
    if not axes.lines:
        axes.text(0.5, 0.5, "not recorded", ha="center", transform=axes.transAxes)


def _tidy(panels: Any) -> None:
    for axes in panels:
        style_axes(axes)
