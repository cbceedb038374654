r"""Plan the ratio of each device for a target round time (paper, section VI and its appendix).

A client's round takes

.. math:: T_k = \delta_k + \frac{\text{bytes down}}{B_k^\downarrow}
          + \frac{\text{forward} + \text{backward}(r_k)}{\gamma_k}
          + \frac{\text{bytes up}(r_k)}{B_k^\uparrow}

and the planner chooses the largest ratio whose time is within the target. It counts the whole
sub-layers that a plan assigns to the clients at that ratio.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fedplt.errors import FleetError
from fedplt.fleet.devices import DeviceProfile
from fedplt.fleet.fleet_plan import (
    DeadlineChoice,
    DevicePlan,
    FleetPlan,
    FleetTarget,
    Rule,
    deadline_choices,
)
from fedplt.fleet.round_times import TOLERANCE, RoundTime, in_time, round_time
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
    """Find the largest ratio of each device that meets the target, or the reason why none does.

    The target is a round of ``deadline_seconds``, or a ``percentile`` of all devices' times for
    full training. By default it is the time of the fastest device that has the memory for it, or
    the smallest deadline that everyone meets if that is longer.

    Ratios are at least ``min_ratio``, and at least the layers that are always trained. A device for
    which this is too much may, if allowed, freeze its first layers (``may_freeze``), or else take
    fewer local steps (``may_cut_steps``).
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
    planner = _Planner(workload, math.inf, target)
    rule, seconds = planner.find_target(devices)
    plan = replace(planner, seconds=seconds).plan_all(devices, rule)
    if rule != "fastest" or not plan.late:
        return plan
    everyone = next(iter(plan_deadlines(plan, workload)), None)
    if everyone is None or everyone.seconds <= seconds:
        return plan  # late devices lack memory: no deadline helps
    return replace(planner, seconds=everyone.seconds).plan_all(devices, "everyone")


def plan_deadlines(plan: FleetPlan, workload: Workload) -> list[DeadlineChoice]:
    """Deadlines to choose from, and the ratios planned for them with the plan's settings."""
    devices = [entry.device for entry in plan.devices]
    planner = _Planner(workload, plan.target_seconds, plan.target)

    def for_deadline(seconds: float) -> FleetPlan:
        return replace(planner, seconds=seconds).plan_all(devices, "deadline")

    return deadline_choices([planner.least_seconds(device) for device in devices], for_deadline)


@dataclass(eq=False)
class _Planner:
    """Plans one device after another, in client order: clients take turns in that order."""

    workload: Workload
    seconds: float
    target: FleetTarget
    turns: Turns | None = None
    """The turns after the clients that are already planned."""

    @property
    def min_ratio(self) -> float:
        """The smallest ratio to plan: at least the layers that are always trained."""
        return max(self.target.min_ratio, self.workload.always_ratio)

    def find_target(self, devices: Sequence[DeviceProfile]) -> tuple[Rule, float]:
        """The target time and where it comes from."""
        if self.target.deadline_seconds is not None:
            return "deadline", self.target.deadline_seconds
        full = [round_time(device, self.workload.work(1.0)).total for device in devices]
        if self.target.percentile is not None:
            times = np.repeat(full, [device.count for device in devices])
            return "percentile", float(np.percentile(times, self.target.percentile))
        # Ignore devices without the memory for full training: their times mean nothing.
        pairs = zip(devices, full, strict=True)
        able = [seconds for device, seconds in pairs if self.part_size(device, 1.0)]
        return "fastest", min(able or full)

    def plan_all(self, devices: Sequence[DeviceProfile], rule: Rule) -> FleetPlan:
        entries = []
        for device in devices:
            entry = self._plan(device)
            _, self.turns = self.workload.next_work(
                entry.ratio, device.count, self.turns, frozen=entry.frozen_layers
            )
            entries.append(entry)
        text = self.workload.describe()
        return FleetPlan(tuple(entries), self.seconds, rule, self.target, text)

    def _plan(self, device: DeviceProfile) -> DevicePlan:
        largest, steps = self._largest_ratio(device), self.workload.local_steps
        if largest >= self.min_ratio:
            return self._entry(device, largest, steps)
        needed = f"only ratio {largest:.3g} would fit" if largest > 0 else "no ratio would fit"
        if self._largest_ratio(replace(device, memory_bytes=None)) >= self.min_ratio:
            needed += f" into its memory of {bytes_text(device.memory_bytes or 0)}"
        for frozen in self._depths()[1:]:
            ratio = self._largest_ratio(device, frozen)
            if ratio >= self.min_ratio:
                traded = (
                    f"freezes the first {frozen} of {self.workload.num_layers} layers to train "
                    f"ratio {ratio:.3g} (with all layers {needed})"
                )
                return self._entry(device, ratio, steps, frozen, traded=traded)
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
                return self._entry(device, ratio, fewer, -shallow, traded=traded)
        fastest = self._fastest(device)
        return self._entry(device, fastest, steps, reason=self._reason(device, fastest))

    def _slowest(
        self, device: DeviceProfile, ratio: float, frozen: int = 0, steps: int | None = None
    ) -> tuple[RoundTime, Work]:
        """The round of the slowest client with this device, in whole sub-layers."""
        works, _ = self.workload.next_work(
            ratio, device.count, self.turns, local_steps=steps, frozen=frozen
        )
        rounds = ((round_time(device, work), work) for work in works)
        return max(rounds, key=lambda each: each[0].total)

    def _fits(
        self, device: DeviceProfile, ratio: float, frozen: int = 0, steps: int | None = None
    ) -> bool:
        time, _ = self._slowest(device, ratio, frozen, steps)
        return in_time(time.total, self.seconds) and self.part_size(device, ratio, frozen) > 0

    def part_size(self, device: DeviceProfile, ratio: float, frozen: int = 0) -> int:
        """The largest micro-batch that fits into the device's memory; 0: none."""
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

        Counting memory is slow, and memory is nearly linear in the ratio: two ratios are counted.
        """
        if self.part_size(device, most, frozen):
            return most
        least = min(most, self.min_ratio)
        if not self.part_size(device, least, frozen):
            return 0.0
        needs = [self._least_memory(device, ratio, frozen) for ratio in (least, most)]
        return _crossing(np.array([least, most]), needs, device.memory_bytes or 0.0)

    def _least_memory(self, device: DeviceProfile, ratio: float, frozen: int = 0) -> float:
        """The memory that training needs, with whole batches or with single examples."""
        sizes = self.workload.part_sizes
        return min(self._memory(device, ratio, frozen, size) for size in (sizes[0], sizes[-1]))

    def _memory(self, device: DeviceProfile, ratio: float, frozen: int, part_size: int) -> float:
        return self.workload.memory_bytes(
            ratio, device.count, self.turns, frozen=frozen, part_size=part_size
        )

    def _largest_ratio(self, device: DeviceProfile, frozen: int = 0) -> float:
        """The largest ratio at which all clients with this device are in time; 0: none."""
        knots = self.workload.knots(frozen)
        works = (self.workload.work(float(ratio), frozen=frozen) for ratio in knots)
        times = [round_time(device, work).total for work in works]
        largest = _crossing(knots, times, self.seconds)
        if device.memory_bytes is not None and largest > 0:
            largest = self._ratio_in_memory(device, largest, frozen)
        if self.workload.is_linear:
            return largest

        def fits(ratio: float) -> bool:
            return self._fits(device, ratio, frozen)

        largest = _largest_fitting(knots, largest, fits) if largest > 0 else 0.0
        if largest < self.min_ratio <= knots[-1]:
            tried = (self._fastest(device, frozen), self.min_ratio)
            return next(filter(fits, tried), largest)
        return largest

    def _fastest(self, device: DeviceProfile, frozen: int = 0, steps: int | None = None) -> float:
        """The allowed ratio with the shortest round: with whole sub-layers not always the least."""
        if self.workload.is_linear:
            return self.min_ratio

        def seconds(planner: _Planner, ratio: float) -> float:
            return planner._slowest(device, ratio, frozen, steps)[0].total

        least, knots = self.min_ratio, self.workload.knots(frozen)
        near = np.geomspace(least, min(2 * least, knots[-1]), 24)  # the fastest is often small
        found = np.unique(np.concatenate([[least], near[1:], knots[knots > least]]))
        # Without turns, the work of a ratio is the same for all devices and cached. Only the eight
        # fastest ratios are compared with the turns of the clients.
        first = functools.partial(seconds, replace(self, turns=None))
        ranked = sorted(map(float, found), key=first)
        return min(sorted(ranked[:8]), key=functools.partial(seconds, self))

    def _note(self, device: DeviceProfile, ratio: float, frozen: int, part_size: int) -> str:
        """A note on what the device's memory limits."""
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
        """The largest number of local steps that fits, less than the workload's; 0: none."""
        fewer = range(1, self.workload.local_steps)
        return bisect_left(fewer, True, key=lambda n: not self._fits(device, ratio, frozen, n))

    def _reason(self, device: DeviceProfile, ratio: float) -> str:
        """Why even the least work is too much: first reasons that no setting changes."""
        smallest = f"the {'smallest' if ratio == self.min_ratio else 'fastest'} ratio {ratio:.3g}"
        if ratio == self.workload.always_ratio:
            smallest += " (the layers that are always trained)"
        limit = f"the target is {seconds_text(self.seconds)} s"
        if device.memory_bytes is not None and not self.part_size(device, ratio):
            need = bytes_text(self._least_memory(device, ratio))
            have = bytes_text(device.memory_bytes)
            advice = self._advice(device)  # freezing layers saves memory, too
            return f"needs {need} at {smallest}, has {have}; no deadline changes that{advice}"
        time, _ = self._slowest(device, ratio)
        before = time.latency + time.download
        alone = {"latency alone takes": time.latency, "download alone takes": time.download}
        for what, seconds in {**alone, "latency and download take": before}.items():
            if not in_time(seconds, self.seconds):
                return f"its {what} {seconds_text(seconds)} s at any ratio; {limit}"
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
            if self.part_size(device, fastest, frozen):
                times.append(self._slowest(device, fastest, frozen, steps)[0].total)
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
        ratio: float,
        steps: int,
        frozen: int = 0,
        reason: str = "",
        traded: str = "",
    ) -> DevicePlan:
        planned, work = self._slowest(device, ratio, frozen, steps)
        whole = self.workload.work(1.0)
        part_size, memory = self.part_size(device, ratio, frozen), None
        if device.memory_bytes is not None:
            used = part_size or self.workload.part_sizes[-1]
            memory = self._memory(device, ratio, frozen, used)
        return DevicePlan(
            device=device, ratio=ratio, local_steps=steps, frozen_layers=frozen,
            full=round_time(device, whole), planned=planned, full_work=whole, work=work,
            reason=reason, traded=traded,
            note=self._note(device, ratio, frozen, part_size), memory_bytes=memory,
            micro_batch=part_size if 0 < part_size < self.workload.part_sizes[0] else None,
        )  # fmt: skip


def _crossing(knots: NDArray[np.float64], values: Sequence[float], limit: float) -> float:
    """The largest ratio whose value, linear between the knots, is within the limit; 0: none.

    With whole sub-layers, values may fall as the ratio grows: then the last crossing counts.

    >>> _crossing(np.array([0.0, 1.0]), [2.0, 6.0], 3.0)
    0.25
    >>> _crossing(np.array([0.0, 0.5, 1.0]), [2.0, 4.0, 3.0], 3.0)
    1.0
    """
    if in_time(values[-1], limit):
        return float(knots[-1])
    least = np.minimum.accumulate(values[::-1])[::-1].tolist()
    above = bisect_right(least, limit)
    if above == 0:
        return 0.0
    low, high = least[above - 1], least[above]
    share = (limit - low) / (high - low)
    return float(knots[above - 1] + share * (knots[above] - knots[above - 1]))


def _largest_fitting(
    knots: NDArray[np.float64], guess: float, fits: Callable[[float], bool]
) -> float:
    """The largest ratio found that fits; 0: none.

    With whole sub-layers a larger ratio may fit where a smaller one does not. The search tries the
    knot above the guess, the guess and the knots below, then halves the gap above the first hit.
    """
    tried = [*knots[knots > guess][:1], guess, *knots[knots < guess][::-1]]
    too_large = math.inf
    for ratio in map(float, tried):
        if ratio > 0 and fits(ratio):
            break
        too_large = ratio
    else:
        return 0.0
    for _ in range(6 if too_large < math.inf else 0):
        middle = (ratio + too_large) / 2
        ratio, too_large = (middle, too_large) if fits(middle) else (ratio, middle)
    return ratio
