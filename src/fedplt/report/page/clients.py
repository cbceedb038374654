"""Clients: how their scores are distributed, who is worst off, who was refused, late or away."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np

from fedplt.report.page.chart import Chart, axis, evenly, label, line
from fedplt.report.page.runs import ShownRun
from fedplt.report.page.scores import client_summary, scores_by_client
from fedplt.tables import Table

MAX_LISTED = 20
ALL_RECORDED = 200
"""The scores of more clients are not recorded one by one."""
REASON_LETTERS = 200


def client_charts(run: ShownRun) -> list[Chart]:
    """The distribution at the last evaluation, and its spread by round."""
    charts = [_histogram(run), _by_round(run)]
    return [chart for chart in charts if chart is not None]


def _last_scores(run: ShownRun) -> tuple[int, dict[int, float]]:
    for record in reversed(run.history.rounds):
        if found := scores_by_client(record):
            return record.round, found
    return 0, {}


def _histogram(run: ShownRun) -> Chart | None:
    round_number, scores = _last_scores(run)
    if not scores or _num_clients(run) > ALL_RECORDED:
        return None
    metric = run.history.metric
    values = np.array(list(scores.values()))
    counts, edges = np.histogram(metric.scale * values, bins=min(20, 4 + len(values) // 4))
    ranges = [f"{a:.4g} to {b:.4g}" for a, b in pairwise(edges)]
    trace = {
        "type": "bar", "x": (edges[:-1] + edges[1:]) / 2, "y": counts, "width": np.diff(edges),
        "customdata": ranges, "showlegend": False,
        "hovertemplate": f"{label(metric.name)} %{{customdata}}: %{{y}} clients<extra></extra>",
    }  # fmt: skip
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    alt = (
        f"{metric.name} of {len(values)} clients in round {round_number}: {metric.text(low)} to "
        f"{metric.text(high)}, median {metric.text(middle)}."
    )
    layout = {"xaxis": axis(f"{metric.label} of a client"), "yaxis": axis("clients")}
    return Chart("distribution", "Scores of the clients", alt, [trace], layout, alt, 260)


def _by_round(run: ShownRun) -> Chart | None:
    """Minimum, median and maximum over clients by round."""
    metric = run.history.metric
    records = [(r.round, found) for r in run.history.rounds if (found := client_summary(r))]
    if len(records) < 2:
        return None
    kept = [records[i] for i in evenly(len(records))]
    rounds = [number for number, _ in kept]
    traces = [
        line(key, rounds, [metric.scale * found.get(key, np.nan) for _, found in kept])
        for key in ("max", "p90", "median", "mean", "p10", "min")
        if any(key in found for _, found in kept)
    ]
    layout = {"xaxis": axis("round"), "yaxis": axis(metric.label), "hovermode": "x unified"}
    alt = f"Quantiles and mean of the clients' {metric.name}, by round."
    return Chart("spread", "Spread over clients", alt, traces, layout, "", 260)


def _num_clients(run: ShownRun) -> int:
    return run.config.clients.num_clients if run.config else 0


def worst_table(run: ShownRun) -> Table | None:
    """The worst tenth of the clients, by name."""
    round_number, scores = _last_scores(run)
    if not scores:
        return None
    metric = run.history.metric
    order = sorted(scores, key=lambda k: scores[k], reverse=metric.direction == "lower")
    tenth = max(1, max(len(order), _num_clients(run)) // 10)
    worst = order[: min(tenth, max(1, len(order) // 2))]
    rows = tuple((run.client_name(k), metric.number(scores[k])) for k in worst)
    title = f"The worst tenth of the clients, round {round_number}"
    notes = (f"{len(worst)} of {tenth} are listed.",) if len(worst) < tenth else ()
    return Table("worst", title, ("client", metric.label), rows, notes)


def away_table(run: ShownRun) -> Table | None:
    """Clients whose update was refused, who dropped out or were late: how often, and why."""
    counts: dict[str, Counter[int]] = {kind: Counter() for kind in ("refused", "dropped", "late")}
    reasons: dict[int, str] = {}
    for record in run.history.rounds:
        for client, reason in record.rejected.items():
            number = int(client) if client.isdecimal() else -1
            counts["refused"][number] += 1
            reasons.setdefault(number, f"round {record.round}: {reason[:REASON_LETTERS]}")
        counts["dropped"].update(record.dropped)
        counts["late"].update(record.late)
    total: Counter[int] = sum(counts.values(), Counter())
    if not total:
        return None
    order = sorted(total, key=lambda k: (-counts["refused"][k], -total[k], k))
    rows: Any = tuple(
        (
            run.client_name(k),
            *(str(counts[kind][k] or "-") for kind in counts),
            reasons.get(k, "-"),
        )
        for k in order[:MAX_LISTED]
    )
    sums = ", ".join(f"{counts[kind].total()} {kind}" for kind in counts)
    notes: tuple[str, ...] = (f"In all rounds together: {sums}.",)
    if len(order) > MAX_LISTED:
        notes = (*notes, f"{MAX_LISTED} of {len(order)} clients are listed.")
    header = ("client", "refused", "dropped", "late", "first refusal")
    return Table("away", "Refused, dropped and late clients", header, rows, notes)
