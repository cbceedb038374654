"""Charts and tables of clients: scores, sampling, refused updates, absences."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np

from fedplt.report.page.chart import Chart, axis, evenly, hover, label, line
from fedplt.report.page.read_runs import ShownRun, client_summary, scores_by_client
from fedplt.text import Table

MAX_LISTED = 20
ALL_RECORDED = 200
"""Scores are recorded one by one for at most this many clients."""
REASON_LETTERS = 200


def _last_scores(run: ShownRun) -> tuple[int, dict[int, float]]:
    for record in reversed(run.history.rounds):
        if found := scores_by_client(record):
            return record.round, found
    return 0, {}


def score_histogram(run: ShownRun) -> Chart | None:
    """The distribution of the clients' scores at the last evaluation."""
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
        "hovertemplate": hover(f"{label(metric.name)} %{{customdata}}: %{{y}} clients"),
    }  # fmt: skip
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    alt = (
        f"{metric.name} of {len(values)} clients in round {round_number}: {metric.text(low)} to "
        f"{metric.text(high)}, median {metric.text(middle)}."
    )
    layout = {"xaxis": axis(f"{metric.label} of a client"), "yaxis": axis("clients")}
    return Chart("distribution", "Scores of the clients", alt, [trace], layout, alt, 260)


def score_quantiles(run: ShownRun) -> Chart | None:
    """Minimum, median and maximum over clients by round."""
    metric = run.history.metric
    records = [(r.round, found) for r in run.history.rounds if (found := client_summary(r))]
    if len(records) < 2:
        return None
    shown = [records[i] for i in evenly(len(records))]
    rounds = [number for number, _ in shown]
    traces = [
        line(key, rounds, [metric.scale * found.get(key, np.nan) for _, found in shown])
        for key in ("max", "p90", "median", "mean", "p10", "min")
        if any(key in found for _, found in shown)
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
    """Clients that were refused, dropped out or were late: how often, and why."""
    counts: dict[str, Counter[int]] = {kind: Counter() for kind in ("refused", "dropped", "late")}
    reasons: dict[int, str] = {}
    for record in run.history.rounds:
        for client, reason in record.rejected.items():
            counts["refused"][int(client)] += 1
            reasons.setdefault(int(client), f"round {record.round}: {reason[:REASON_LETTERS]}")
        counts["dropped"].update(record.dropped)
        counts["late"].update(record.late)
    total: Counter[int] = sum(counts.values(), Counter())
    if not total:
        return None
    order = sorted(total, key=lambda k: (-counts["refused"][k], -total[k], k))
    rows = tuple(
        (run.client_name(k), *(str(c[k] or "-") for c in counts.values()), reasons.get(k, "-"))
        for k in order[:MAX_LISTED]
    )
    sums = ", ".join(f"{counts[kind].total()} {kind}" for kind in counts)
    notes: tuple[str, ...] = (f"In all rounds together: {sums}.",)
    if len(order) > MAX_LISTED:
        notes = (*notes, f"{MAX_LISTED} of {len(order)} clients are listed.")
    header = ("client", "refused", "dropped", "late", "first refusal")
    return Table("away", "Refused, dropped and late clients", header, rows, notes)


def _samplings(run: ShownRun) -> dict[int, Any]:
    """The records of client sampling, by round; empty if all clients take part."""
    return {record.round: record.sampling for record in run.history.rounds if record.sampling}


def sampling_probabilities(run: ShownRun) -> Chart | None:
    """Mean probability and share of rounds of each client; None if clients are not listed."""
    samplings = _samplings(run).values()
    given = [entry.get("probabilities") for entry in samplings]
    listed = [entry for entry in given if isinstance(entry, list) and entry]
    chosen = [client for entry in samplings for client in entry.get("chosen", [])]
    if not listed and not chosen:
        return None
    number = max(len(listed[0]) if listed else 0, 1 + max(chosen, default=0))
    names = [label(run.client_name(client)) for client in range(number)]
    share = np.bincount(np.array(chosen, dtype=int), minlength=number) / len(samplings)
    common = {
        "x": list(range(number)), "customdata": names,
        "hovertemplate": hover("%{customdata}<br>%{fullData.name}: %{y:.1%}"),
    }  # fmt: skip
    traces = [{"type": "bar", "name": "share of rounds", "y": share, **common}]
    if listed:
        mean = np.mean([entry for entry in listed if len(entry) == number], axis=0)
        points = {"type": "scatter", "mode": "markers", "name": "mean probability", "y": mean}
        traces.append({**points, **common})
    layout = {
        "xaxis": axis("client"),
        "yaxis": axis("share of rounds", tickformat=".0%", rangemode="tozero"),
        "bargap": 0.1,
    }
    alt = (
        f"{number} clients are chosen in {share.min():.0%} to {share.max():.0%} of "
        f"{len(samplings)} rounds."
    )
    return Chart("probabilities", "Sampling probabilities", alt, traces, layout, "", 280)


def sampling_budget(run: ShownRun) -> Chart | None:
    """Cost against budget by round, and the variance relative to uniform sampling."""
    samplings = _samplings(run)
    if not samplings:
        return None
    x = [list(samplings)[i] for i in evenly(len(samplings))]

    def values(key: str) -> list[Any]:
        return [samplings[number].get(key) for number in x]

    names = {"num_chosen": "chosen clients"}
    title, note = "chosen clients", ""
    if samplings[x[0]].get("budget") is not None:
        names = {"cost": "cost", "expected_cost": "expected cost", "budget": "budget"}
        title, spent = "budget and cost", np.mean(values("cost"))
        note = f"{spent:.3g} is spent on average of a budget of {values('budget')[-1]}."
    traces = [
        line(text, x, values(key), **({"line": {"dash": "dash"}} if key == "budget" else {}))
        for key, text in names.items()
    ]
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
    alt = f"Cost of the chosen clients in {len(samplings)} rounds. {note}"
    return Chart("budget", "Sampling budget", alt, traces, layout, note, 280)
