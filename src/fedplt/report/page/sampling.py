"""Who was chosen to upload: probabilities and shares by client, budget and cost by round."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedplt.report.page.chart import Chart, axis, evenly, label, line
from fedplt.report.page.runs import ShownRun


def sampling_charts(run: ShownRun) -> list[Chart]:
    """Charts of client sampling; none if all clients take part."""
    records = [record for record in run.history.rounds if record.sampling]
    if not records:
        return []
    said: list[Any] = [record.sampling for record in records]
    rounds = [record.round for record in records]
    charts = [_by_client(run, said), _by_round(rounds, said)]
    return [chart for chart in charts if chart is not None]


def _by_client(run: ShownRun, said: list[Any]) -> Chart | None:
    """Mean probability and share of rounds of each client, where clients are listed."""
    listed = [entry["probabilities"] for entry in said if _is_list(entry.get("probabilities"))]
    chosen = [client for entry in said for client in entry.get("chosen", [])]
    if not listed and not chosen:
        return None
    number = max(len(listed[0]) if listed else 0, 1 + max(chosen, default=0))
    names = [label(run.client_name(client)) for client in range(number)]
    share = np.bincount(np.array(chosen, dtype=int), minlength=number) / len(said)
    hover = "%{customdata}<br>%{fullData.name}: %{y:.1%}<extra></extra>"
    traces: list[dict[str, Any]] = [
        {"type": "bar", "name": "share of rounds", "x": list(range(number)), "y": share,
         "customdata": names, "hovertemplate": hover}
    ]  # fmt: skip
    if listed:
        mean = np.mean([entry for entry in listed if len(entry) == number], axis=0)
        traces.append(
            {"type": "scatter", "mode": "markers", "name": "mean probability",
             "x": list(range(number)), "y": mean, "customdata": names, "hovertemplate": hover}
        )  # fmt: skip
    layout = {
        "xaxis": axis("client"),
        "yaxis": axis("share of rounds", tickformat=".0%", rangemode="tozero"),
        "bargap": 0.1,
    }
    alt = (
        f"{number} clients are chosen in {share.min():.0%} to {share.max():.0%} of "
        f"{len(said)} rounds."
    )
    return Chart("probabilities", "Sampling probabilities", alt, traces, layout, "", 280)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _by_round(rounds: list[int], said: list[Any]) -> Chart:
    """Cost against budget, and the variance relative to uniform sampling."""
    kept = evenly(len(rounds))
    x = [rounds[i] for i in kept]

    def values(key: str) -> list[Any]:
        return [said[i].get(key) for i in kept]

    names = {"cost": "cost", "expected_cost": "expected cost", "budget": "budget"}
    traces = [
        line(text, x, values(key), **({"line": {"dash": "dash"}} if key == "budget" else {}))
        for key, text in names.items()
        if any(value is not None for value in values(key))
    ]
    title = "budget and cost"
    if not traces:
        traces, title = [line("chosen clients", x, values("num_chosen"))], "chosen clients"
    layout: dict[str, Any] = {
        "xaxis": axis("round"),
        "yaxis": axis(title, rangemode="tozero"),
        "hovermode": "x unified",
    }
    ratio = values("variance_ratio")
    if any(value is not None for value in ratio):
        traces.append(line("variance / uniform sampling's", x, ratio, yaxis="y2"))
        right = {"overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False}
        layout["yaxis2"] = axis("variance ratio", **right)
    costs = [value for value in values("cost") if value is not None]
    note = ""
    if costs:
        note = f"{np.mean(costs):.3g} is spent on average of a budget of {values('budget')[-1]}."
    alt = f"Cost of the chosen clients in {len(rounds)} rounds. {note}"
    return Chart("budget", "Sampling budget", alt, traces, layout, note, 280)
