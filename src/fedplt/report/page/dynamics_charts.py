"""How the global model moved: update magnitude, effective perturbation, ages of sub-layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedplt.federation import RoundRecord
from fedplt.report.page.chart import ROWS, Chart, axis, evenly, hover, label, line
from fedplt.report.page.read_runs import ShownRun

MAX_LINES = 8
"""Up to this many layers have a line each; more are rows of a heatmap."""
MAX_COLUMNS = 300
QUANTITIES: dict[str, tuple[str, str, dict[str, str]]] = {
    "update_magnitude": (
        "Update magnitude", "squared norm of a round's change",
        {"type": "log", "exponentformat": "power"},
    ),
    "effective_perturbation": ("Effective perturbation", "1: rounds agree, 0: they cancel", {}),
    "mean_age": ("Age of sub-layers", "rounds since trained, mean", {"rangemode": "tozero"}),
}  # fmt: skip
"""Title, label and options of the vertical axis."""


def dynamics_charts(run: ShownRun) -> list[Chart]:
    """One chart per quantity; none if diagnostics were not recorded."""
    records = [record for record in run.history.rounds if record.diagnostics]
    if not records:
        return []
    return [_chart(name, records) for name in QUANTITIES]


def dynamics_note(run: ShownRun) -> str:
    last: Any = next((r.diagnostics for r in reversed(run.history.rounds) if r.diagnostics), None)
    if last is None:
        return ""
    never = {name: entry.get("never_trained", 0) for name, entry in last["layers"].items()}
    parts = [f"{number} sub-layers of {name}" for name, number in never.items() if number]
    return f"Never trained so far: {', '.join(parts)}." if parts else ""


def _chart(key: str, records: Sequence[RoundRecord]) -> Chart:
    title, what, scale = QUANTITIES[key]
    seen: list[Any] = [record.diagnostics for record in records]
    layers = list(seen[0]["layers"])
    many = len(layers) > MAX_LINES
    shown = evenly(len(records), MAX_COLUMNS if many else 1000)
    rounds = [records[i].round for i in shown]
    logarithmic = key == "update_magnitude"

    def values(name: str, in_logs: bool = False) -> list[float | None]:
        found = [_known(seen[i]["layers"].get(name, {}).get(key), logarithmic) for i in shown]
        return [math.log10(v) if in_logs and v is not None else v for v in found]

    layout: dict[str, Any] = {"xaxis": axis("round")}
    if many:
        traces = [
            {
                "type": "heatmap", "x": rounds, "y": [label(name) for name in layers],
                "z": [values(name, in_logs=logarithmic) for name in layers],
                "meta": {"scale": "value"},
                "hovertemplate": hover("%{y}<br>round %{x}: %{z:.3~g}"),
                "colorbar": {"title": {"text": "log10" if logarithmic else ""}, "thickness": 10},
            }
        ]  # fmt: skip
        layout["yaxis"] = {**ROWS, "nticks": 12}
    else:
        traces = [line(name, rounds, values(name)) for name in layers]
        whole = [_known(seen[i].get(key), logarithmic) for i in shown]
        if any(value is not None for value in whole):
            color = {"meta": {"color": "text"}, "line": {"width": 2.5}}
            traces.append(line("whole model", rounds, whole, **color))
        layout["yaxis"] = axis(what, **scale)
        layout["hovermode"] = "x unified"
    alt = f"{title} of {len(layers)} layers, rounds {rounds[0]} to {rounds[-1]}."
    return Chart(key, title, alt, traces, layout, what if many else "", 300)


def _known(value: Any, logarithmic: bool) -> float | None:
    """None for what is missing, and for what a logarithmic axis cannot show."""
    if not isinstance(value, int | float) or (logarithmic and value <= 0):
        return None
    return float(value)
