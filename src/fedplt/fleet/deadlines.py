"""Deadlines to choose from: the smallest that every device meets, or all but the slowest few."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fedplt.fleet.plan import DeadlineChoice, FleetPlan

MAX_LEFT_OUT = 3
_ATTEMPTS = 8


def deadline_choices(
    least_seconds: Sequence[float], plan: Callable[[float], FleetPlan]
) -> list[DeadlineChoice]:
    """The smallest deadline that everyone meets, then those of all but the slowest one, two, ...

    ``least_seconds`` are the devices' shortest times (infinite: no deadline helps) and ``plan``
    plans for a deadline. Deadlines are rounded up to three digits: they can be used as shown.
    """
    possible = sorted((each for each in least_seconds if math.isfinite(each)), reverse=True)
    result: list[DeadlineChoice] = []
    for number, shortest in enumerate(possible[: MAX_LEFT_OUT + 1]):
        wanted = len(possible) - number
        choice = _choice(rounded_up(shortest), wanted, plan)
        if choice is not None and (not result or choice.seconds < result[-1].seconds):
            result.append(choice)
    return result


def _choice(
    seconds: float, wanted: int, plan: Callable[[float], FleetPlan]
) -> DeadlineChoice | None:
    """The plan for this deadline, or one a little longer, that at least ``wanted`` meet."""
    for _ in range(_ATTEMPTS):
        made = plan(seconds)
        met = [entry for entry in made.devices if entry.feasible]
        if len(met) >= wanted:
            number = sum(entry.device.count for entry in met)
            mean = sum(entry.device.count * entry.ratio for entry in met) / number
            late = tuple(entry.device.name for entry in made.devices if not entry.feasible)
            return DeadlineChoice(seconds, late, mean, min(entry.ratio for entry in met))
        # Where clients take turns, a device's least work depends on the plans of others.
        times = sorted(entry.planned.total for entry in made.devices if not entry.feasible)
        seconds = rounded_up(max(times[wanted - len(met) - 1], seconds * 1.01))
    return None


def rounded_up(seconds: float) -> float:
    """
    >>> rounded_up(11.4701), rounded_up(0.12345), rounded_up(1234.5), rounded_up(2.5)
    (11.5, 0.124, 1240.0, 2.5)
    """
    digits = 2 - math.floor(math.log10(seconds))
    scaled = seconds * 10**digits if digits >= 0 else seconds / 10**-digits
    up = math.ceil(scaled * (1 - 1e-12))
    return up / 10**digits if digits >= 0 else float(up * 10**-digits)
