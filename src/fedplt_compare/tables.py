"""The tables of an advice: each strategy's scores, costs and memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedplt.comparison import cost_text, mean_cost_text
from fedplt.federation import memory_counter
from fedplt.text import SAMPLE_STD, Table, bytes_text, flops_text, seconds_text, shortened
from fedplt_compare.outcome import TIME, Outcome

if TYPE_CHECKING:
    from fedplt_compare.advice import Advice

MOST_KINDS = 8
"""Maximum number of kinds of devices in the table of memory, starting with the least memory."""


def gains_table(advice: Advice) -> Table:
    after, target = cost_text(TIME, advice.seconds), advice.metric.text(advice.target)
    header = (
        "strategy", f"{advice.metric.name} after {after}", f"time to {target}",
        "on slow devices' data", "left out", "examples lost", "labels mostly lost",
    )  # fmt: skip
    rows, notes = [], []
    for outcome in advice.outcomes:
        scores = outcome.scores(advice.when(outcome)).values()
        shown = advice.spread(scores) if scores else "no round"
        if outcome.compared_after is not None:
            shown += f" (given up after {cost_text(TIME, outcome.compared_after)})"
        elif outcome.capped and outcome.last_seconds < advice.seconds:
            shown += " †"
            notes.append(
                f"† {outcome.strategy.title} did {outcome.num_rounds} rounds, the most of any "
                f"strategy, in {cost_text(TIME, outcome.last_seconds)}; its last score is shown."
            )
        share, labels = outcome.lost
        rows.append(
            (
                outcome.strategy.title,
                shown,
                mean_cost_text(TIME, [*outcome.times_to(advice.target).values()]),
                advice.spread(outcome.slow_scores.values()),
                str(len(outcome.left_out)),
                f"{100 * share:.0f} %",
                ", ".join(map(str, labels)) or "-",
            )
        )
    notes += [f"{title} was not trained: {why}." for title, why in advice.skipped.items()]
    most = max(len(outcome.histories) for outcome in advice.outcomes)
    over = "one seed" if most == 1 else f"mean ± {SAMPLE_STD} over {most} seeds"
    title = f"What each strategy brings, {over}"
    return Table("advice", title, header, tuple(rows), tuple(notes))


def costs_table(advice: Advice) -> Table:
    header = ("strategy", "a round", "bytes a device", "bytes in all", "FLOPs", "idle", "energy")
    rows = []
    for outcome in advice.outcomes:
        at = advice.when(outcome)
        sent = outcome.total(at, "bytes_up") + outcome.total(at, "bytes_down")
        number = outcome.job.plan.num_clients - len(outcome.left_out)
        energy = outcome.energy(at)
        rows.append(
            (
                outcome.strategy.title,
                f"{seconds_text(outcome.round_seconds)} s",
                bytes_text(sent / max(1, number)),
                bytes_text(sent),
                flops_text(outcome.total(at, "flops")),
                f"{100 * outcome.idle:.0f} %",
                "-" if energy is None else f"{energy / 3600:.3g} Wh",
            )
        )
    note = (
        "Bytes up and down, of a device that takes part. Idle: share of the time in which devices "
        "wait for the slowest. Energy: of devices with watts, while they compute and send."
    )
    return Table("advice-costs", "What it costs by then", header, tuple(rows), (note,))


def memory_table(advice: Advice) -> Table:
    kinds = sorted(advice.setting.devices, key=lambda device: device.memory_bytes or math.inf)
    kinds = kinds[:MOST_KINDS]
    has = [f" (has {bytes_text(d.memory_bytes)})" if d.memory_bytes else "" for d in kinds]
    header = [shortened(d.name, 20) + text for d, text in zip(kinds, has, strict=True)]
    rows = [
        (outcome.strategy.title, *_memory(outcome, [device.name for device in kinds]))
        for outcome in advice.outcomes
    ]
    note = "Weights, gradients, activations, optimizer and update at the fullest moment of a step."
    title = "Memory of each kind of device"
    return Table("advice-memory", title, ("strategy", *header), tuple(rows), (note,))


def _memory(outcome: Outcome, names: Sequence[str]) -> Iterator[str]:
    """The memory that the first participating client with each device needs."""
    job, counter = outcome.job, memory_counter(outcome.job)
    for name in names:
        clients = [k for k in range(job.plan.num_clients) if job.device_name(k) == name]
        client = next((k for k in clients if k not in outcome.left_out), None)
        if client is None:
            yield "left out"
            continue
        settings, batch = job.training_of(client).settings, len(job.examples(client))
        if settings.batch_size != "full":
            batch = settings.batch_size
        yield bytes_text(counter.peak(job.plan.assignment(client), batch, settings.micro_batch))
