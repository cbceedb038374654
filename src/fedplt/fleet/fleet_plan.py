"""Plans of a fleet: the target, what each device should do, printed tables and JSON."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat

from fedplt.errors import FleetError
from fedplt.fleet.devices import DeviceProfile
from fedplt.fleet.round_times import RoundTime
from fedplt.fleet.workload import Work
from fedplt.schema import Section
from fedplt.text import brief, bytes_text, counted, flops_text, seconds_text, shortened, table

MAX_WARNINGS = 12


class FleetTarget(Section):
    """The round time to plan for, by default the fastest device's, and the allowed trade-offs.

    These are the keys of ``[target]`` in a device file and of ``[fleet]`` in a run, the parameters
    of :func:`fedplt.plan_fleet`, and the options of ``fedplt fleet``.
    """

    deadline_seconds: PositiveFloat | None = None
    """Plan for rounds of this length."""
    percentile: Annotated[float, Field(ge=0, le=100)] | None = None
    """Plan for this percentile of the devices' times for full training."""
    min_ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    may_freeze: bool = False
    """Devices that would miss the target may freeze their first layers."""
    may_cut_steps: bool = False
    """Devices that would miss the target may take fewer local steps."""

    def refuse_conflicts(self) -> None:
        if self.deadline_seconds is not None and self.percentile is not None:
            problem = "give either deadline_seconds or percentile"
            raise FleetError(problem, key="deadline_seconds", also=["percentile"])


@dataclass(frozen=True)
class DevicePlan:
    """What one device trains in a round, and the time and memory that this needs."""

    device: DeviceProfile
    ratio: float
    local_steps: int
    frozen_layers: int
    full: RoundTime
    planned: RoundTime
    """Round time of the slowest client with this device: clients that take turns differ."""
    full_work: Work
    work: Work
    reason: str = ""
    """Why the device cannot meet the target; empty if it does."""
    traded: str = ""
    """What the device leaves out, besides a lower ratio, to meet the target."""
    note: str = ""
    """What is limited by the device's memory instead of its time."""
    memory_bytes: float | None = None
    """Peak memory of its training; only counted if the device's memory is known."""
    micro_batch: int | None = None
    """Batches are split into micro-batches of this size; None: as configured."""

    def __repr__(self) -> str:
        late = "" if self.feasible else ", late"
        seconds = f"{seconds_text(self.planned.total)} s a round{late}"
        return f"<DevicePlan {self.device.name!r}: ratio {self.ratio:.3g}, {seconds}>"

    @property
    def feasible(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class DeadlineChoice:
    """A deadline, and the plan's ratios for it."""

    seconds: float
    late: tuple[str, ...]
    """Devices that miss the deadline."""
    mean_ratio: float
    """Mean ratio of the clients that meet it."""
    smallest_ratio: float


Rule = Literal["fastest", "everyone", "deadline", "percentile"]
"""Where the target time comes from; ``everyone``: the shortest time that every device meets, if
some miss the fastest device's time."""


@dataclass(frozen=True)
class FleetPlan:
    """The devices' plans and the target time."""

    devices: tuple[DevicePlan, ...]
    target_seconds: float
    rule: Rule
    target: FleetTarget
    work: str

    __repr__ = brief

    @property
    def late(self) -> list[DevicePlan]:
        """Devices that miss the target."""
        return [entry for entry in self.devices if not entry.feasible]

    @property
    def full_round_seconds(self) -> float:
        return max(entry.full.total for entry in self.devices)

    @property
    def round_seconds(self) -> float:
        return max(entry.planned.total for entry in self.devices)

    def full_idle(self, entry: DevicePlan) -> float:
        """Seconds that a device would wait for the slowest one if all trained the whole model."""
        return self.full_round_seconds - entry.full.total

    def idle(self, entry: DevicePlan) -> float:
        """Seconds that a device waits for the slowest one under the plan."""
        return self.round_seconds - entry.planned.total


def deadline_choices(
    least_seconds: Sequence[float], plan: Callable[[float], FleetPlan]
) -> list[DeadlineChoice]:
    """The smallest deadlines that all devices meet, and all but the slowest one, two and three.

    ``least_seconds`` are the devices' shortest times (infinite: no deadline helps), and ``plan``
    plans for a deadline. Deadlines are rounded up to three digits, so they can be used as shown.
    """
    possible = sorted((each for each in least_seconds if math.isfinite(each)), reverse=True)
    result: list[DeadlineChoice] = []
    for number, shortest in enumerate(possible[:4]):
        wanted = len(possible) - number
        choice = _choice(rounded_up(shortest), wanted, plan)
        if choice is not None and (not result or choice.seconds < result[-1].seconds):
            result.append(choice)
    return result


def _choice(
    seconds: float, wanted: int, plan: Callable[[float], FleetPlan]
) -> DeadlineChoice | None:
    """This deadline or one slightly longer, so that at least ``wanted`` devices meet it."""
    for _ in range(8):
        made = plan(seconds)
        met = [entry for entry in made.devices if entry.feasible]
        if len(met) >= wanted:
            number = sum(entry.device.count for entry in met)
            mean = sum(entry.device.count * entry.ratio for entry in met) / number
            late = tuple(entry.device.name for entry in made.late)
            return DeadlineChoice(seconds, late, mean, min(entry.ratio for entry in met))
        # Where clients take turns, a device's least work depends on the plans of others.
        times = sorted(entry.planned.total for entry in made.late)
        seconds = rounded_up(max(times[wanted - len(met) - 1], seconds * 1.01))
    return None


def rounded_up(seconds: float) -> float:
    """
    >>> rounded_up(11.4701), rounded_up(0.12345), rounded_up(1234.5), rounded_up(2.5)
    (11.5, 0.124, 1240.0, 2.5)
    """
    three_digits = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)
    return float(three_digits.create_decimal(seconds * (1 - 1e-12)))


_TARGETS = {
    "fastest": "the fastest device's full training time",
    "everyone": "the shortest round that every device can keep up with",
    "deadline": "the deadline",
    "percentile": "percentile {:g} of the full training times",
}


def fleet_summary(plan: FleetPlan, choices: Sequence[DeadlineChoice] | None = None) -> str:
    """Tables of ratios, times and costs per device, and why devices miss the target.

    ``choices``, from :func:`plan_deadlines`, become a table of deadlines to choose from.
    """
    number = sum(entry.device.count for entry in plan.devices)
    missed = sum(entry.device.count for entry in plan.late)
    target = _TARGETS[plan.rule].format(plan.target.percentile)
    parts = [
        f"{counted(number, 'device')}, {plan.work}.\n"
        f"Target {seconds_text(plan.target_seconds)} s: {target}.",
        _times(plan),
        _costs(plan),
        f"A round takes {seconds_text(plan.round_seconds)} s instead of "
        f"{seconds_text(plan.full_round_seconds)} s "
        f"({100 * (1 - plan.round_seconds / plan.full_round_seconds):.1f} % less)."
        + (f" {missed} of {number} devices miss the target." if missed else ""),
    ]
    notes = [
        f"{entry.device.name}: {text}."
        for entry in plan.devices
        for text in (entry.traded, entry.note)
        if text
    ]
    late = [f"WARNING: {e.device.name} misses the target: {e.reason}." for e in plan.late]
    if len(late) > MAX_WARNINGS:
        late[MAX_WARNINGS:] = [f"WARNING: {len(late) - MAX_WARNINGS} more devices miss the target."]
    parts += ["\n".join(lines) for lines in (notes, late) if lines]
    if choices is not None and (late or plan.rule == "everyone"):
        parts.append(_choices(choices))
    return "\n\n".join(parts)


def _choices(choices: Sequence[DeadlineChoice]) -> str:
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
        count = [str(entry.device.count)] if counted else []
        planned = seconds_text(entry.planned.total) + ("" if entry.feasible else " late")
        totals = [f"{entry.ratio:.4f}", seconds_text(entry.full.total), planned]
        parts = [*vars(entry.planned).values(), plan.full_idle(entry), plan.idle(entry)]
        rows.append([shortened(entry.device.name), *count, *totals, *map(seconds_text, parts)])
    return "seconds per round\n" + table(header, rows)


def _costs(plan: FleetPlan) -> str:
    header = ["device", "down", "up full", "up", "up saved", "bytes saved",
              "FLOPs full", "FLOPs", "FLOPs saved"]  # fmt: skip
    rows = []
    for entry in plan.devices:
        whole, work = entry.full_work, entry.work
        sent = map(bytes_text, (work.bytes_down, whole.bytes_up, work.bytes_up))
        both = _saved(work.bytes_up + work.bytes_down, whole.bytes_up + whole.bytes_down)
        saved = [_saved(work.bytes_up, whole.bytes_up), both]
        flops = [flops_text(whole.flops), flops_text(work.flops), _saved(work.flops, whole.flops)]
        rows.append([shortened(entry.device.name), *sent, *saved, *flops])
    return "cost per round\n" + table(header, rows)


def _saved(planned: float, full: float) -> str:
    return f"{100 * (1 - planned / full):.1f} %"


def fleet_json(plan: FleetPlan, choices: Sequence[DeadlineChoice] = ()) -> dict[str, Any]:
    """The plan in plain values: seconds, bytes, FLOPs."""
    return {
        "format": 1,
        "work": plan.work,
        "target": {"rule": plan.rule, "seconds": plan.target_seconds},
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
