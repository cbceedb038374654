"""Figures of the experiments; the same data gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedplt.experiments import DYNAMICS, Page, Selection
from fedplt.files import write_atomically
from fedplt.report.figures import comparison_figure
from fedplt.report.study_figures import layers_figure, model_figure

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
