"""The study of section III as the paper draws it: whole model, and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from matplotlib.figure import Figure

from fedplt.experiments.series import Series
from fedplt.federation.records import History
from fedplt.report.figures import COLORS


def model_figure(histories: Mapping[str, History], series: Mapping[str, Series]) -> Figure:
    """Update norm, effective perturbation and accuracy by round, one line per configuration."""
    figure = Figure(figsize=(12.5, 3.6), layout="constrained")
    panels: Any = figure.subplots(1, 3)
    for color, (label, history) in zip(cycle(COLORS), histories.items(), strict=False):
        curves = series[label]
        panels[0].plot(curves.rounds, curves.update_norm, color=color, label=label)
        panels[1].plot(curves.rounds, curves.effective_perturbation, color=color)
        rounds = [record.round for record in history.evaluated]
        panels[2].plot(rounds, [100 * value for value in history.accuracy], color=color)
    for axes, name in zip(panels, ("update norm", "effective perturbation"), strict=False):
        axes.set(xlabel="round", ylabel=name)
        if not any(series.values()):
            axes.text(0.5, 0.5, "not recorded", ha="center", transform=axes.transAxes)
    panels[1].set_ylim(0, 1.02)
    panels[2].set(xlabel="round", ylabel="validation accuracy (%)", ylim=(0, 100))
    _tidy(panels)
    figure.legend(loc="outside upper center", ncols=len(histories), frameon=False)
    return figure


def layers_figure(series: Mapping[str, Series]) -> Figure:
    """Effective perturbation of every layer, one panel per configuration."""
    figure = Figure(figsize=(4.2 * len(series), 3.6), layout="constrained")
    panels: Any = figure.subplots(1, len(series), sharey=True, squeeze=False)[0]
    for axes, (label, curves) in zip(panels, series.items(), strict=True):
        layers = curves.layer_effective_perturbation.items()
        for color, (layer, values) in zip(cycle(COLORS), layers, strict=False):
            axes.plot(curves.rounds, values, color=color, label=layer)
        if not curves:
            axes.text(0.5, 0.5, "not recorded", ha="center", transform=axes.transAxes)
        axes.set_title(label, fontsize=10)
        axes.set(xlabel="round", ylim=(0, 1.02))
    panels[0].set_ylabel("effective perturbation")
    _tidy(panels)
    if any(series.values()):
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=8, frameon=False)
    return figure


def _tidy(panels: Any) -> None:
    for axes in panels:
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
