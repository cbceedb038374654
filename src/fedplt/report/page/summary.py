"""Headline numbers, the table of costs, and the reproducibility checklist."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from fedplt.comparison import spread_text
from fedplt.planning import download_bytes, make_plan
from fedplt.report.page.read_runs import Groups, ShownRun, final_model_of, runs_of
from fedplt.report.page.score_charts import finals_of
from fedplt.text import Table, bytes_text, duration_text, flops_text, seconds_text


def headline(groups: Groups) -> list[tuple[str, str]]:
    """Headline numbers with their names; for several groups, the best score and counts."""
    runs = runs_of(groups)
    metric = runs[0].history.metric
    if len(groups) > 1:
        best = max if metric.direction == "higher" else min
        finals = dict(zip(groups, map(fmean, finals_of(groups)), strict=True))
        winner = best(finals, key=lambda name: finals[name])
        what = f"best {metric.name}, mean of the last 10 evaluations: {winner}"
        return [
            (metric.text(finals[winner], 1), what),
            (str(len(groups)), "configurations"),
            (str(len(runs)), "runs"),
        ]
    number = min(10, len(runs[0].history.evaluated))
    last = spread_text(metric, (r.history.shipped.last_score for r in runs), 1, unit=metric.unit)
    final = spread_text(metric, finals_of(groups)[0], 1, unit=metric.unit)
    of = f" ({model})" if (model := final_model_of(runs)) else ""
    shown = [
        (last, f"{metric.name}, last evaluation{of}"),
        (final, f"{metric.name}, mean of the last {number} evaluations{of}"),
    ]
    tests = [score for run in runs if (score := run.history.test_score) is not None]
    if tests:
        shown.append((metric.text(fmean(tests), 1), f"{metric.name} on the test set{of}"))
    first = runs[0]
    total = first.history.rounds[-1].total
    shown.append((f"{first.rounds_done} / {first.rounds}", "rounds"))
    shown.append((bytes_text(total.bytes_up), "uploaded by clients"))
    shown.append((flops_text(total.flops), "computed by clients"))
    if total.simulated_seconds:
        shown.append((duration_text(total.simulated_seconds), "on the devices (simulated)"))
    shown.append((duration_text(sum(r.seconds for r in first.history.rounds)), "measured here"))
    if spent := first.history.privacy:
        shown.append((f"ε = {spent['epsilon']:.3g}", f"privacy spent, at δ = {spent['delta']:.2g}"))
    return shown


def cost_table(run: ShownRun) -> Table:
    """Bytes, FLOPs and times, in total and per round, with FedAvg's if known."""
    total, number = run.history.rounds[-1].total, max(1, run.rounds_done)
    measured = sum(record.seconds for record in run.history.rounds)
    rows = [
        (what, text(value), text(value / number))
        for what, text, value in (
            ("uploaded", bytes_text, total.bytes_up),
            ("downloaded", bytes_text, total.bytes_down),
            ("computed, exact", flops_text, total.flops),
            ("computed, the paper's model", flops_text, total.paper_flops),
        )
    ]
    for what, seconds in (("measured", measured), ("simulated", total.simulated_seconds)):
        if seconds or what == "measured":
            each = f"{seconds_text(seconds / number)} s"
            rows.append((f"{what} time", duration_text(seconds), each))
    notes: tuple[str, ...] = ()
    if (plan := run.plan) is not None:
        whole = make_plan(plan.layers, [1.0]).assignment(0)
        notes = (
            f"A client trains {float(plan.achieved_ratios.mean()):.1%} of the model on average; "
            f"the whole model is {bytes_text(download_bytes(whole))}. Exact: the products and "
            "convolutions that really run. The paper's model lets the whole backward pass scale "
            "with the trained fraction.",
        )
    return Table("costs", "Costs", ("", "all rounds", "per round"), tuple(rows), notes)


def checklist(groups: Groups) -> Table:
    """Seed, state, duration, machine and versions per run; as a note if all runs agree."""
    runs = [(name, run) for name, members in groups.items() for run in members]
    columns = {
        "run": [name for name, _ in runs],
        "folder": [run.name for _, run in runs],
        "seed": [str(run.seed) for _, run in runs],
        "rounds": [
            f"{run.rounds_done} of {run.rounds}{'' if run.is_finished else ', not finished'}"
            for _, run in runs
        ],
        "duration": [duration_text(sum(r.seconds for r in run.history.rounds)) for _, run in runs],
        "started": [
            str(first.get("started", "-")).replace("T", " ").replace("+00:00", " UTC")
            for first in ((run.sessions or [{}])[0] for _, run in runs)
        ],
    }
    notes = []
    for title, text in (("machine", _machine), ("versions", _versions)):
        cells = [text((run.sessions or [{}])[-1]) for _, run in runs]
        if len(set(cells)) == 1:
            notes.append(f"{title.capitalize()}: {cells[0]}.")
        else:
            columns[title] = cells
    if any(len(run.sessions) > 1 for _, run in runs):
        notes.append("Some runs were resumed; machine and versions are the last session's.")
    rows = tuple(zip(*columns.values(), strict=True))
    return Table("checklist", "How it was computed", tuple(columns), rows, tuple(notes))


def _machine(session: Mapping[str, Any]) -> str:
    cores, memory = session.get("cores"), session.get("memory_bytes")
    parts = [
        session.get("processor"),
        f"{cores} cores" if cores else "",
        bytes_text(memory) if memory else "",
        session.get("system"),
    ]
    return ", ".join(filter(None, parts)) or "not recorded"


def _versions(session: Mapping[str, Any]) -> str:
    numbers = {"python": session.get("python"), **session.get("packages", {})}
    known = [f"{name} {number}" for name, number in numbers.items() if number]
    return ", ".join(known) or "not recorded"
