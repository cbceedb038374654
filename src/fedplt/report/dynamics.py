"""Figures of diagnostics (how the model moved) and of client sampling (who was chosen)."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedplt.federation import History
from fedplt.report.figures import COLORS
from fedplt.text import short_names


def diagnostics_figure(history: History) -> Figure | None:
    """Update magnitude, effective perturbation and ages by round; None if not recorded."""
    records = [record for record in history.rounds if record.diagnostics]
    if not records:
        return None
    rounds = [record.round for record in records]
    seen: list[Any] = [record.diagnostics for record in records]
    figure = Figure(figsize=(10.8, 3.6), layout="constrained")
    magnitude, alignment, age = figure.subplots(1, 3)
    magnitude.set(title="update magnitude", yscale="log")
    alignment.set(title="effective perturbation", ylim=(0, 1.03))
    age.set(title="rounds since trained (mean)")
    shown = short_names(list(seen[0]["layers"]), 24)
    for color, name, label in zip(cycle(COLORS), seen[0]["layers"], shown, strict=False):
        layers = [entry["layers"][name] for entry in seen]
        for axes, key in (
            (magnitude, "update_magnitude"),
            (alignment, "effective_perturbation"),
            (age, "mean_age"),
        ):
            values = [layer.get(key, np.nan) for layer in layers]
            axes.plot(rounds, _positive(axes, values), color=color, linewidth=1, label=label)
    for axes, key in ((magnitude, "update_magnitude"), (alignment, "effective_perturbation")):
        values = [entry.get(key, np.nan) for entry in seen]
        axes.plot(rounds, _positive(axes, values), color="black", linewidth=1.8, label="model")
    age.set_ylim(bottom=0)
    _finish(figure, "round")
    handles, labels = alignment.get_legend_handles_labels()
    columns = min(8, len(labels))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def sampling_figure(history: History) -> Figure | None:
    """Variance relative to uniform sampling by round, and how often each client was chosen."""
    records = [record for record in history.rounds if record.sampling]
    if not records:
        return None
    said: list[Any] = [record.sampling for record in records]
    ratios = [entry.get("variance_ratio", np.nan) for entry in said]
    compared = not np.isnan(ratios).all()
    figure = Figure(figsize=(10.8 if compared else 6.0, 3.4), layout="constrained")
    *others, often = figure.subplots(1, 1 + compared, squeeze=False)[0]
    for variance in others:
        variance.set(title="variance / variance of uniform sampling", xlabel="round")
        variance.axhline(1, color="#999999", linewidth=0.8)
        rounds = [record.round for record in records]
        variance.plot(rounds, ratios, color=COLORS[0], linewidth=1.4)
        variance.set_ylim(bottom=0)
    often.set(title="how often each client was chosen", xlabel="client", ylabel="share of rounds")
    chosen = [client for entry in said for client in entry.get("chosen", [])]
    if chosen:
        counts = np.bincount(chosen) / len(said)
        often.bar(np.arange(len(counts)), counts, width=1.0, color=COLORS[0], alpha=0.5)
    listed = [p for entry in said if isinstance(p := entry.get("probabilities"), list)]
    if listed:
        mean = np.mean(listed, axis=0)
        often.plot(mean, ".", color=COLORS[1], markersize=4, label="mean probability")
        often.legend(frameon=False)
    _finish(figure)
    return figure


def _positive(axes: Any, values: list[float]) -> Any:
    """Replace zeros by NaN: a logarithmic axis cannot show them."""
    array = np.asarray(values, dtype=float)
    return np.where(array > 0, array, np.nan) if axes.get_yscale() == "log" else array


def _finish(figure: Figure, xlabel: str | None = None) -> None:
    for axes in figure.axes:
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
        if xlabel:
            axes.set_xlabel(xlabel)
