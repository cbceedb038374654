r"""Plan the ratio of each device for a target round time (paper, section VI and its appendix).

A client's round takes

.. math:: T_k = \delta_k + \frac{\text{bytes down}}{B_k^\downarrow}
          + \frac{\text{forward} + \text{backward}(r_k)}{\gamma_k}
          + \frac{\text{bytes up}(r_k)}{B_k^\uparrow}

and the planner chooses the largest ratio whose time is within the target, with the whole sub-layers
that a plan really gives to the clients at that ratio.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import ValidationError

from fedplt.errors import FleetError
from fedplt.fleet.devices import DeviceProfile
from fedplt.fleet.plan import (
    TOLERANCE,
    DeadlineChoice,
    DevicePlan,
    FleetPlan,
    FleetTarget,
    RoundTime,
    Rule,
    deadline_choices,
    in_time,
    round_time,
)
from fedplt.fleet.search import crossing, largest_fitting
from fedplt.fleet.workload import Work, Workload
from fedplt.planning import Turns
from fedplt.schema import first_problem
from fedplt.text import bytes_text, seconds_text


def plan_fleet(
    devices: Sequence[DeviceProfile],
    workload: Workload,
    *,
    deadline_seconds: float | None = None,
    percentile: float | None = None,
    min_ratio: float = 0.01,
    may_freeze: bool = False,
    may_cut_steps: bool = False,
) -> FleetPlan:
    """The largest ratio of each device that meets the target, or the reason why none does.

    The target is a round of ``deadline_seconds``, or a ``percentile`` of all devices' times for
    full training. By default it is the time of the fastest device that has the memory for it, or
    the smallest deadline that everyone meets if that is longer.

    Ratios are at least ``min_ratio`` and the layers that are always trained. A device that needs
    less may, if allowed, freeze its first layers (``may_freeze``), or else take fewer local steps
    (``may_cut_steps``).
    """
    if not devices:
        raise FleetError("no devices were given; give at least one.")
    values = {
        "deadline_seconds": deadline_seconds, "percentile": percentile, "min_ratio": min_ratio,
        "may_freeze": may_freeze, "may_cut_steps": may_cut_steps,
    }  # fmt: skip
    try:
        target = FleetTarget.model_validate(values, strict=False)
    except ValidationError as error:
        raise FleetError(first_problem(error)) from None
    if may_freeze and workload.num_layers == 1:
        raise FleetError(
            "freezing layers saves nothing in the paper's cost model, which knows only the ratio. "
            "Name a model, so that exact FLOPs are known, or do without freezing."
        )
    full = [round_time(device, workload.work(1.0)) for device in devices]
    rule, seconds = _target_seconds(target, devices, full, workload)
    planner = _Planner(workload, seconds, target)
    plan = planner.plan_all(devices, full, rule)
    if rule != "fastest" or not plan.late:
        return plan
    everyone = next(iter(plan_deadlines(plan, workload)), None)
    if everyone is None or everyone.seconds <= seconds:
        return plan  # the late ones lack memory
    longer = replace(planner, seconds=everyone.seconds, turns=None)
    return longer.plan_all(devices, full, "everyone")


def _target_seconds(
    target: FleetTarget,
    devices: Sequence[DeviceProfile],
    full: Sequence[RoundTime],
    workload: Workload,
) -> tuple[Rule, float]:
    """The target time and where it comes from."""
    if target.deadline_seconds is not None:
        return "deadline", target.deadline_seconds
    pairs = list(zip(devices, full, strict=True))
    if target.percentile is not None:
        times = [time.total for device, time in pairs for _ in range(device.count)]
        return "percentile", float(np.percentile(times, target.percentile))
    # Without the memory for full training, a device's time for it means nothing.
    planner = _Planner(workload, math.inf, target)
    able = [time.total for device, time in pairs if planner.part_size(device, 1.0)]
    return "fastest", min(able or (time.total for time in full))


def plan_deadlines(plan: FleetPlan, workload: Workload) -> list[DeadlineChoice]:
    """Deadlines to choose from, with the plan's limits, and what planning for them gives."""
    devices, full = [e.device for e in plan.devices], [e.full for e in plan.devices]
    planner = _Planner(workload, plan.target_seconds, plan.target)

    def for_deadline(seconds: float) -> FleetPlan:
        return replace(planner, seconds=seconds, turns=None).plan_all(devices, full, "deadline")

    return deadline_choices([planner.least_seconds(device) for device in devices], for_deadline)


@dataclass(eq=False)
class _Planner:
    """Plans device after device, in the order of the clients: they take turns in that order."""

    workload: Workload
    seconds: float
    target: FleetTarget
    turns: Turns | None = None
    """Of the clients that are planned already."""

    @property
    def min_ratio(self) -> float:
        """The smallest ratio to plan: at least the layers that are always trained."""
        return max(self.target.min_ratio, self.workload.always_ratio)

    def plan_all(
        self, devices: Sequence[DeviceProfile], full: Sequence[RoundTime], rule: Rule
    ) -> FleetPlan:
        entries = tuple(self.plan(device, time) for device, time in zip(devices, full, strict=True))
        return FleetPlan(entries, self.seconds, rule, self.target, self.workload.describe())

    def plan(self, device: DeviceProfile, full: RoundTime) -> DevicePlan:
        entry = self._plan(device, full)
        self.turns = self.workload.next_work(
            entry.ratio, device.count, self.turns, frozen=entry.frozen_layers
        ).turns
        return entry

    def _plan(self, device: DeviceProfile, full: RoundTime) -> DevicePlan:
        largest, steps = self._largest_ratio(device), self.workload.local_steps
        if largest >= self.min_ratio:
            return self._entry(device, full, largest, steps)
        needed = f"only ratio {largest:.3g} would fit" if largest > 0 else "no ratio would fit"
        if self._largest_ratio(replace(device, memory_bytes=None)) >= self.min_ratio:
            needed += f" into its memory of {bytes_text(device.memory_bytes or 0)}"
        for frozen in range(1, self.workload.num_layers) if self.target.may_freeze else ():
            ratio = self._largest_ratio(device, frozen)
            if ratio >= self.min_ratio:
                traded = (
                    f"freezes the first {frozen} of {self.workload.num_layers} layers to train "
                    f"ratio {ratio:.3g} (with all layers {needed})"
                )
                return self._entry(device, full, ratio, steps, frozen, traded=traded)
        if self.target.may_cut_steps:
            fewer, shallow, ratio = max(
                (self._most_steps(device, ratio, frozen), -frozen, ratio)
                for frozen in self._depths()
                for ratio in {self._fastest(device, frozen), self._fastest(device, frozen, 1)}
            )
            if fewer:
                traded = (
                    f"takes {fewer} of {steps} local steps"
                    + (f", freezes the first {-shallow} layers" if shallow else "")
                    + f" to train ratio {ratio:.3g} (else {needed})"
                )
                return self._entry(device, full, ratio, fewer, -shallow, traded=traded)
        fastest = self._fastest(device)
        return self._entry(device, full, fastest, steps, reason=self._reason(device, fastest))

    def _works(
        self, device: DeviceProfile, ratio: float, frozen: int = 0, steps: int | None = None
    ) -> tuple[Work, ...]:
        """The work of the clients with this device, in whole sub-layers."""
        return self.workload.next_work(
            ratio, device.count, self.turns, local_steps=steps, frozen=frozen
        ).works

    def _fits(
        self, device: DeviceProfile, ratio: float, frozen: int = 0, steps: int | None = None
    ) -> bool:
        works = self._works(device, ratio, frozen, steps)
        in_times = (in_time(round_time(device, work).total, self.seconds) for work in works)
        return all(in_times) and self.part_size(device, ratio, frozen) > 0

    def part_size(self, device: DeviceProfile, ratio: float, frozen: int = 0) -> int:
        """The most examples at once whose training fits into the device's memory; 0: none."""
        if device.memory_bytes is None:
            return self.workload.part_sizes[0]
        limit = device.memory_bytes * (1 + TOLERANCE)
        largest, *smaller = self.workload.part_sizes
        if self._memory(device, ratio, frozen, largest) <= limit:
            return largest
        if not smaller or self._memory(device, ratio, frozen, smaller[-1]) > limit:
            return 0  # single examples need the least
        return next(n for n in smaller if self._memory(device, ratio, frozen, n) <= limit)

    def _ratio_in_memory(self, device: DeviceProfile, most: float, frozen: int) -> float:
        """The largest ratio, up to ``most``, that fits into the device's memory; 0: none.

        Counting memory takes long, and it is nearly linear in the ratio: two ratios are counted.
        """
        if self.part_size(device, most, frozen):
            return most
        least, sizes = min(most, self.min_ratio), self.workload.part_sizes
        if not self.part_size(device, least, frozen):
            return 0.0
        needs = [
            min(self._memory(device, ratio, frozen, size) for size in (sizes[0], sizes[-1]))
            for ratio in (least, most)
        ]
        return crossing(np.array([least, most]), needs, device.memory_bytes or 0.0)

    def _memory(self, device: DeviceProfile, ratio: float, frozen: int, part_size: int) -> float:
        return self.workload.memory_bytes(
            ratio, device.count, self.turns, frozen=frozen, part_size=part_size
        )

    def _largest_ratio(self, device: DeviceProfile, frozen: int = 0) -> float:
        """The largest ratio at which all clients with this device are in time; 0: nothing fits."""
        knots, works = self.workload.knots(frozen), self._knot_works(frozen)
        times = [round_time(device, work).total for work in works]
        largest = crossing(knots, times, self.seconds)
        if device.memory_bytes is not None and largest > 0:
            largest = self._ratio_in_memory(device, largest, frozen)
        if self.workload.is_linear:
            return largest

        def fits(ratio: float) -> bool:
            return self._fits(device, ratio, frozen)

        largest = largest_fitting(knots, largest, fits) if largest > 0 else 0.0
        if largest < self.min_ratio <= knots[-1]:
            tried = (self._fastest(device, frozen), self.min_ratio)
            return next(filter(fits, tried), largest)
        return largest

    def _fastest(self, device: DeviceProfile, frozen: int = 0, steps: int | None = None) -> float:
        """The allowed ratio with the shortest round; with whole sub-layers not always the least."""
        if self.workload.is_linear:
            return self.min_ratio

        def seconds(planner: _Planner, ratio: float) -> float:
            works = planner._works(device, ratio, frozen, steps)
            return max(round_time(device, work).total for work in works)

        least, knots = self.min_ratio, self.workload.knots(frozen)
        near = np.geomspace(least, min(2 * least, knots[-1]), 24)  # the fastest is often small
        found = np.unique(np.concatenate([[least], near[1:], knots[knots > least]]))
        # Without turns, the work of a ratio is counted once for all devices; only the eight fastest
        # are compared with the turns of the clients.
        first = functools.partial(seconds, replace(self, turns=None))
        ranked = sorted(map(float, found), key=first)
        return min(sorted(ranked[:8]), key=functools.partial(seconds, self))

    @functools.cache  # noqa: B019 (lives as long as one call of plan_fleet)
    def _knot_works(self, frozen: int) -> list[Work]:
        knots = self.workload.knots(frozen)
        return [self.workload.work(float(ratio), frozen=frozen) for ratio in knots]

    def _note(self, device: DeviceProfile, ratio: float, frozen: int, part_size: int) -> str:
        """What the device's memory limits, in words."""
        if device.memory_bytes is None or not part_size:
            return ""
        notes = []
        if self.part_size(device, 1.0) == 0:
            by_time = self._largest_ratio(replace(device, memory_bytes=None), frozen)
            if by_time > ratio:
                notes.append(f"limits it to ratio {ratio:.3g}; its time would allow {by_time:.3g}")
        if part_size < self.workload.part_sizes[0]:
            batch = self.workload.batch_size
            notes.append(f"takes batches of {batch} in parts of {part_size} (micro_batch)")
        memory = bytes_text(device.memory_bytes)
        return f"its memory of {memory} {'. It '.join(notes)}" if notes else ""

    def _most_steps(self, device: DeviceProfile, ratio: float, frozen: int) -> int:
        low, high = 0, self.workload.local_steps
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._fits(device, ratio, frozen, middle)
            low, high = (middle, high) if fits else (low, middle)
        return low

    def _reason(self, device: DeviceProfile, ratio: float) -> str:
        """Why even the least work is too much: first what no setting changes."""
        smallest = f"the {'smallest' if ratio == self.min_ratio else 'fastest'} ratio {ratio:.3g}"
        if ratio == self.workload.always_ratio:
            smallest += " (the layers that are always trained)"
        works, limit = self._works(device, ratio), f"the target is {seconds_text(self.seconds)} s"
        if device.memory_bytes is not None and not self.part_size(device, ratio):
            sizes = self.workload.part_sizes
            needed = min(self._memory(device, ratio, 0, n) for n in (sizes[0], sizes[-1]))
            need, have = bytes_text(needed), bytes_text(device.memory_bytes)
            advice = self._advice(device)  # freezing layers saves memory, too
            return f"needs {need} at {smallest}, has {have}; no deadline changes that{advice}"
        time = max((round_time(device, work) for work in works), key=lambda each: each.total)
        before = time.latency + time.download
        if not in_time(before, self.seconds):
            parts = {"latency": time.latency, "download": time.download}
            alone = [name for name, part in parts.items() if not in_time(part, self.seconds)]
            what = f"{alone[0]} alone takes" if alone else "latency and download take"
            shown = seconds_text(parts[alone[0]] if alone else before)
            return f"its {what} {shown} s at any ratio; {limit}"
        advice = self._advice(device)
        if not in_time(before + time.forward, self.seconds):
            return (
                f"its forward pass takes {seconds_text(time.forward)} s at any ratio, after "
                f"{seconds_text(before)} s of latency and download; {limit}{advice}"
            )
        return f"takes {seconds_text(time.total)} s at {smallest}, {limit}{advice}"

    def _advice(self, device: DeviceProfile) -> str:
        """The permissions that would let a device meet the target."""
        now = (self.target.may_freeze, self.target.may_cut_steps)
        for freeze, cut in ((True, False), (False, True), (True, True)):
            if (freeze and self.workload.num_layers == 1) or now == (freeze, cut):
                continue
            permitted = self.target.model_copy(update={"may_freeze": freeze, "may_cut_steps": cut})
            freer = replace(self, target=permitted, turns=None)
            if in_time(freer.least_seconds(device), self.seconds):
                names = ["may_freeze"] * freeze + ["may_cut_steps"] * cut
                return f" ({' and '.join(names)} would help)"
        return ""

    def least_seconds(self, device: DeviceProfile) -> float:
        """The shortest round of a device; infinite if its memory is too small for any."""
        steps = 1 if self.target.may_cut_steps else None
        times = [math.inf]
        for frozen in self._depths():
            fastest = self._fastest(device, frozen, steps)
            works = self._works(device, fastest, frozen, steps)
            if self.part_size(device, fastest, frozen):
                times.append(max(round_time(device, work).total for work in works))
        return min(times)

    def _depths(self) -> list[int]:
        """Numbers of frozen layers that leave enough to train the smallest ratio."""
        return [
            frozen
            for frozen in range(self.workload.num_layers if self.target.may_freeze else 1)
            if self.workload.knots(frozen)[-1] >= self.min_ratio
        ]

    def _entry(
        self,
        device: DeviceProfile,
        full: RoundTime,
        ratio: float,
        steps: int,
        frozen: int = 0,
        reason: str = "",
        traded: str = "",
    ) -> DevicePlan:
        works = self._works(device, ratio, frozen, steps)
        work = max(works, key=lambda work: round_time(device, work).total)
        part_size, memory = self.part_size(device, ratio, frozen), None
        if device.memory_bytes is not None:
            used = part_size or self.workload.part_sizes[-1]
            memory = self._memory(device, ratio, frozen, used)
        return DevicePlan(
            device=device, ratio=ratio, local_steps=steps, frozen_layers=frozen,
            full=full, planned=round_time(device, work),
            full_work=self.workload.work(1.0), work=work,
            reason=reason, traded=traded,
            note=self._note(device, ratio, frozen, part_size), memory_bytes=memory,
            micro_batch=part_size if 0 < part_size < self.workload.part_sizes[0] else None,
        )  # fmt: skip
