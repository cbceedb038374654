"""Who trains what: clients by sub-layers, coverage and contributions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedplt.planning import Plan, allocation_of
from fedplt.report.page.chart import ROWS, Chart, axis, evenly, hover, label, line
from fedplt.report.page.read_runs import ShownRun

MAX_ROWS = 60
"""Up to this many clients have a row each; more are grouped by ratio."""
SAMPLE = 20
"""At most this many clients of a group are sampled."""
MAX_COLUMNS = 480
MAX_LAYERS = 12
"""Up to this many layers are segments of a bar; more are cells of a heatmap."""


Rows = dict[str, NDArray[np.int64]]
"""Row name -> its clients: a single one, or a group with similar ratios."""


class Columns:
    """Neighboring sub-layers, binned: at most MAX_COLUMNS columns for all layers together."""

    def __init__(self, plan: Plan) -> None:
        self.layers = plan.layers
        most = max(1, MAX_COLUMNS // len(self.layers))
        self.edges = [
            np.linspace(0, number, min(number, most) + 1).round().astype(np.int64)
            for number in self.layers.num_sublayers
        ]
        """Per layer, the first sub-layer of each bin, and the end."""

    def means(self, values: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        """Values per sub-layer, averaged over the bins, layer after layer."""
        parts = [
            np.add.reduceat(layer.astype(np.float64), edges[:-1]) / np.diff(edges)
            for layer, edges in zip(values, self.edges, strict=True)
        ]
        return np.concatenate(parts)

    def names(self) -> list[str]:
        return [
            f"{label(layer.name)}: sub-layer {first}"
            + (f" to {last - 1}" if last - first > 1 else "")
            + f" of {layer.num_sublayers}"
            for layer, edges in zip(self.layers, self.edges, strict=True)
            for first, last in pairwise(edges.tolist())
        ]

    def layer_axis(self) -> dict[str, Any]:
        """An axis with the layers' names in the middle of their columns."""
        widths = [len(edges) - 1 for edges in self.edges]
        starts = np.cumsum([0, *widths])
        shown = evenly(len(widths), MAX_LAYERS)
        return {
            "tickvals": [float(starts[i] + (widths[i] - 1) / 2) for i in shown],
            "ticktext": [label(self.layers[i].name) for i in shown],
            "meta": {"edges": [float(start) - 0.5 for start in starts[1:-1]]},
            "showgrid": False,
            "zeroline": False,
        }


def rows_of(run: ShownRun, plan: Plan) -> Rows:
    """One row per client, or groups of clients with the same ratio, large ratios first."""
    if plan.num_clients <= MAX_ROWS:
        return {run.client_name(k): np.array([k]) for k in range(plan.num_clients)}
    order = np.argsort(-plan.ratios, kind="stable")
    cuts = np.flatnonzero(np.diff(plan.ratios[order])) + 1
    kinds = np.split(order, cuts) if len(cuts) < MAX_ROWS else [order]
    total, groups = plan.num_clients, []
    for kind in kinds:
        pieces = max(1, min(len(kind), int(MAX_ROWS * len(kind) / total)))
        groups += np.array_split(kind, pieces)
    return {
        f"{len(clients)} clients, {clients.min()} to {clients.max()}, "
        f"ratio {_ratio_text(plan, clients)}": clients
        for clients in groups
    }


def _ratio_text(plan: Plan, clients: NDArray[np.int64]) -> str:
    low, high = float(plan.ratios[clients].min()), float(plan.ratios[clients].max())
    return f"{low:.3g}" if high - low < 5e-4 else f"{low:.3g} to {high:.3g}"


def trained_shares(plan: Plan, rows: Rows, columns: Columns) -> NDArray[np.float64]:
    """The share of each column that the clients of each row train, (rows, columns)."""
    result = []
    for clients in rows.values():
        some = clients[evenly(len(clients), SAMPLE)]
        counts = [np.zeros(number) for number in plan.layers.num_sublayers]
        for client in some:
            for layer, ranges in zip(counts, plan.assignment(int(client)).slices, strict=True):
                for part in ranges:
                    layer[part.start : part.stop] += 1
        result.append(columns.means(counts) / len(some))
    return np.array(result)


def plan_charts(run: ShownRun) -> list[Chart]:
    """The charts of a run's plan; none if it is not known."""
    plan = run.plan
    if plan is None:
        return []
    return [who_trains_what(run, plan), coverage(plan), contributions(run, plan)]


def who_trains_what(run: ShownRun, plan: Plan) -> Chart:
    rows, columns = rows_of(run, plan), Columns(plan)
    note = "In round 1." if plan.rotate_every or plan.costs_change else ""
    if len(rows) < plan.num_clients:
        note += (
            f" {plan.num_clients} clients in {len(rows)} groups of similar ratios; a color is the "
            f"share over up to {SAMPLE} clients of a group."
        )
    trace = {
        "type": "heatmap",
        "z": trained_shares(plan, rows, columns).round(3),
        "y": [label(name) for name in rows],
        "meta": {"scale": "share", "columns": columns.names()},
        "hovertemplate": hover("%{y}<br>%{customdata}<br>trained: %{z:.0%}"),
        "zmin": 0,
        "zmax": 1,
        "showscale": False,
        "xgap": 0,
        "ygap": 1 if len(rows) <= 40 else 0,
    }
    achieved = plan.achieved_ratios
    alt = (
        f"{plan.num_clients} clients by {sum(plan.layers.num_sublayers)} sub-layers of "
        f"{len(plan.layers)} layers; clients train {achieved.min():.1%} to {achieved.max():.1%} of "
        "the model."
    )
    layout = {"xaxis": columns.layer_axis(), "yaxis": {**ROWS, "showgrid": False, "nticks": 12}}
    height = int(min(620, max(220, 90 + 9 * len(rows))))
    return Chart("plan", "Clients by sub-layers", alt, [trace], layout, note.strip(), height)


def coverage(plan: Plan) -> Chart:
    columns = Columns(plan)
    values = columns.means(plan.coverage)
    trace = line(
        "", range(len(values)), values,
        line={"shape": "hvh"}, fill="tozeroy", customdata=columns.names(), showlegend=False,
        hovertemplate=hover("%{customdata}<br>%{y:.3~g} clients"),
    )  # fmt: skip
    low = min(int(layer.min()) for layer in plan.coverage)
    high = max(int(layer.max()) for layer in plan.coverage)
    note = " ".join(map(str, plan.uncovered))
    layout = {
        "xaxis": columns.layer_axis(),
        "yaxis": axis("clients per sub-layer", rangemode="tozero"),
    }
    alt = f"Every sub-layer is trained by {low} to {high} of {plan.num_clients} clients."
    return Chart("coverage", "Coverage", alt, [trace], layout, note, 240)


def contributions(run: ShownRun, plan: Plan) -> Chart:
    """The contribution vectors X: the share of each layer in what a client trains."""
    rows = rows_of(run, plan)
    kinds: dict[tuple[float, ...], Rows] = {}
    for name, clients in rows.items():
        part = plan.assignment(int(clients[0]))
        if part.ratio:
            vector = allocation_of(plan.layers.sizes, part.layer_ratios).contributions
            kinds.setdefault(tuple(round(x, 3) for x in vector), {})[name] = clients
    names = [_kind_name(plan, members) for members in kinds.values()][:MAX_ROWS]
    table = np.array(list(kinds)[:MAX_ROWS])  # (kinds, layers)
    layout: dict[str, Any] = {
        "yaxis": ROWS,
        "xaxis": axis("share of each layer in what a client trains", tickformat=".0%"),
    }
    if len(plan.layers) <= MAX_LAYERS:
        traces: list[dict[str, Any]] = [
            {
                "type": "bar", "orientation": "h", "name": label(layer.name),
                "x": table[:, i] if len(table) else [], "y": names,
                "hovertemplate": hover("%{y}<br>%{fullData.name}: %{x:.1%} of what it trains"),
            }
            for i, layer in enumerate(plan.layers)
        ]  # fmt: skip
        layout |= {"barmode": "stack", "xaxis": {**layout["xaxis"], "range": [0, 1]}}
    else:
        layers = [label(layer.name) for layer in plan.layers]
        traces = [
            {
                "type": "heatmap", "z": table, "x": layers, "y": names, "showscale": False,
                "hovertemplate": hover("%{y}<br>%{x}: %{z:.1%} of what it trains"),
                "meta": {"scale": "share"},
            }
        ]  # fmt: skip
        layout["xaxis"] = {"type": "category", "nticks": MAX_LAYERS}
    alt = (
        f"Contribution vectors of {len(names)} kinds of clients over {len(plan.layers)} layers; an "
        f"even one has {1 / len(plan.layers):.1%} in each."
    )
    height = int(min(620, max(200, 120 + 26 * len(names))))
    return Chart("contributions", "Contribution vectors", alt, traces, layout, "", height)


def _kind_name(plan: Plan, rows: Rows) -> str:
    if len(rows) == 1:
        return label(next(iter(rows)))
    clients = np.concatenate(list(rows.values()))
    return f"{len(clients)} clients, ratio {_ratio_text(plan, clients)} (from {clients.min()})"
