"""A fleet plan as printed tables, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedplt.fleet.plan import DeadlineChoice, FleetPlan
from fedplt.text import bytes_text, counted, flops_text, seconds_text, shortened, table

FORMAT = 1
MAX_WARNINGS = 12


def fleet_summary(plan: FleetPlan, choices: Sequence[DeadlineChoice] | None = None) -> str:
    """Tables of ratios, times and costs per device, and why devices miss the target.

    ``choices``, from :func:`plan_deadlines`, become a table of deadlines to choose from.
    """
    parts = [
        f"{counted(sum(entry.device.count for entry in plan.devices), 'device')}, {plan.work}.\n"
        f"Target {seconds_text(plan.target_seconds)} s: {plan.target.describe()}.",
        _times(plan),
        _costs(plan),
        f"A round takes {seconds_text(plan.round_seconds)} s instead of "
        f"{seconds_text(plan.full_round_seconds)} s "
        f"({100 * (1 - plan.round_seconds / plan.full_round_seconds):.1f} % less)." + _missed(plan),
    ]
    notes = [
        f"{entry.device.name}: {text}."
        for entry in plan.devices
        for text in (entry.traded, entry.note)
        if text
    ]
    late = [
        f"WARNING: {entry.device.name} misses the target: {entry.reason}."
        for entry in plan.devices
        if entry.reason
    ]
    if len(late) > MAX_WARNINGS:
        late[MAX_WARNINGS:] = [f"WARNING: {len(late) - MAX_WARNINGS} more devices miss the target."]
    parts += ["\n".join(lines) for lines in (notes, late) if lines]
    if choices is not None and (late or plan.target.rule == "everyone"):
        parts.append(_choices(choices))
    return "\n\n".join(parts)


def _missed(plan: FleetPlan) -> str:
    counts = [entry.device.count for entry in plan.devices if not entry.feasible]
    if not counts:
        return ""
    number = sum(entry.device.count for entry in plan.devices)
    return f" {sum(counts)} of {number} devices miss the target."


def _choices(choices: Sequence[DeadlineChoice]) -> str:
    """Deadlines to choose from."""
    if not choices:
        return "No deadline helps. Leave these devices out, or choose a smaller model or min_ratio."
    rows = []
    for choice in choices:
        some = [shortened(name, 24) for name in choice.late[:3]]
        rest = [f"{len(choice.late) - 3} more"] if len(choice.late) > 3 else []
        who = f"all but {', '.join([*some, *rest])}" if some else "all"
        ratios = [f"{choice.mean_ratio:.3f}", f"{choice.smallest_ratio:.3f}"]
        rows.append([f"{choice.seconds:g} s", *ratios, who])
    header = ["deadline", "mean ratio", "smallest", "met by"]
    return (
        "deadlines to choose from (deadline_seconds)\n" + table(header, rows, left=(0, 3)) + "\n"
        "Ratios are of the devices that meet it. Or leave slow devices out of the file."
    )


def _times(plan: FleetPlan) -> str:
    counted = any(entry.device.count > 1 for entry in plan.devices)
    header = ["device", *(["count"] if counted else []), "ratio", "full", "planned"]
    header += ["latency", "download", "forward", "backward", "upload", "idle full", "idle"]
    rows = []
    for entry in plan.devices:
        time = entry.planned
        parts = (time.latency, time.download, time.forward, time.backward, time.upload)
        rows.append(
            [
                shortened(entry.device.name),
                *([str(entry.device.count)] if counted else []),
                f"{entry.ratio:.4f}",
                seconds_text(entry.full.total),
                seconds_text(time.total) + ("" if entry.feasible else " late"),
                *map(seconds_text, parts),
                seconds_text(plan.full_idle(entry)),
                seconds_text(plan.idle(entry)),
            ]
        )
    return "seconds per round\n" + table(header, rows)


def _costs(plan: FleetPlan) -> str:
    header = ["device", "down", "up full", "up", "up saved", "bytes saved",
              "FLOPs full", "FLOPs", "FLOPs saved"]  # fmt: skip
    rows = []
    for entry in plan.devices:
        whole, work = entry.full_work, entry.work
        rows.append(
            [
                shortened(entry.device.name),
                bytes_text(work.bytes_down),
                bytes_text(whole.bytes_up),
                bytes_text(work.bytes_up),
                _saved(work.bytes_up, whole.bytes_up),
                _saved(work.bytes_up + work.bytes_down, whole.bytes_up + whole.bytes_down),
                flops_text(whole.flops),
                flops_text(work.flops),
                _saved(work.flops, whole.flops),
            ]
        )
    return "cost per round\n" + table(header, rows)


def _saved(planned: float, full: float) -> str:
    return f"{100 * (1 - planned / full):.1f} %"


def fleet_json(plan: FleetPlan, choices: Sequence[DeadlineChoice] = ()) -> dict[str, Any]:
    """Everything in plain values: seconds, bytes, FLOPs."""
    return {
        "format": FORMAT,
        "work": plan.work,
        "target": {"rule": plan.target.rule, "seconds": plan.target_seconds},
        "deadlines": [asdict(choice) for choice in choices],
        "round_seconds": {"full": plan.full_round_seconds, "planned": plan.round_seconds},
        "devices": [
            {
                **asdict(entry),
                "feasible": entry.feasible,
                "seconds": {"full": entry.full.total, "planned": entry.planned.total},
                "idle_seconds": {"full": plan.full_idle(entry), "planned": plan.idle(entry)},
            }
            for entry in plan.devices
        ],
    }
