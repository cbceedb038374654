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
    return [_chart(name, records) for name in QUANTITIES] if records else []


def dynamics_note(run: ShownRun) -> str:
    """The layers with sub-layers that no client has trained."""
    recorded = (r.diagnostics for r in reversed(run.history.rounds) if r.diagnostics)
    layers: dict[str, Any] = next(recorded, {"layers": {}})["layers"]
    never = {name: layer["never_trained"] for name, layer in layers.items()}
    parts = [f"{number} sub-layers of {name}" for name, number in never.items() if number]
    return f"Never trained so far: {', '.join(parts)}." if parts else ""


def _chart(key: str, records: Sequence[RoundRecord]) -> Chart:
    title, what, scale = QUANTITIES[key]
    layers = list((records[0].diagnostics or {})["layers"])
    many = len(layers) > MAX_LINES
    shown = [records[i] for i in evenly(len(records), MAX_COLUMNS if many else 1000)]
    rounds = [record.round for record in shown]
    seen: list[Any] = [record.diagnostics for record in shown]
    found = {name: [each["layers"].get(name, {}).get(key) for each in seen] for name in layers}
    layout: dict[str, Any] = {"xaxis": axis("round")}
    if many:
        in_logs = scale.get("type") == "log"
        if in_logs:
            found = {k: [math.log10(v) if v else None for v in row] for k, row in found.items()}
        traces = [
            {
                "type": "heatmap", "x": rounds, "y": [label(name) for name in layers],
                "z": list(found.values()), "meta": {"scale": "value"},
                "hovertemplate": hover("%{y}<br>round %{x}: %{z:.3~g}"),
                "colorbar": {"title": {"text": "log10" if in_logs else ""}, "thickness": 10},
            }
        ]  # fmt: skip
        layout["yaxis"] = {**ROWS, "nticks": 12}
    else:
        traces = [line(name, rounds, values) for name, values in found.items()]
        whole = [each.get(key) for each in seen]
        if any(value is not None for value in whole):
            color = {"meta": {"color": "text"}, "line": {"width": 2.5}}
            traces.append(line("whole model", rounds, whole, **color))
        layout["yaxis"] = axis(what, **scale)
        layout["hovermode"] = "x unified"
    alt = f"{title} of {len(layers)} layers, rounds {rounds[0]} to {rounds[-1]}."
    return Chart(key, title, alt, traces, layout, what if many else "", 300)
