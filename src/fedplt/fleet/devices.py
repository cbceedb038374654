"""What is known about a device: how fast it computes, downloads and uploads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedplt.errors import FleetError


@dataclass(frozen=True)
class Field:
    """A number of a profile: its unit, and what any real device lies within."""

    name: str
    what: str
    unit: str
    lowest: float
    highest: float
    usual: str
    """A value as people would write it."""


FIELDS = (
    Field("flops_per_second", "speed", "FLOP/s", 1e5, 1e15, "20 GFLOP/s"),
    Field("down_bits_per_second", "download bandwidth", "bit/s", 1e3, 1e12, "20 Mbit/s"),
    Field("up_bits_per_second", "upload bandwidth", "bit/s", 1e3, 1e12, "5 Mbit/s"),
    Field("latency_seconds", "latency", "s", 0.0, 3600.0, "0.2 s"),
    Field("memory_bytes", "memory", "B", 1e4, 1e14, "2 GB"),
)


@dataclass(frozen=True)
class DeviceProfile:
    """A device, or ``count`` devices that are alike.

    Numbers that no device has (an upload of 20 bit/s, a phone with 1e15 FLOP/s) are refused:
    they are nearly always a unit mistaken for another.

    >>> DeviceProfile("phone", 80e9, 120e6, 40e6, latency_seconds=0.2).up_bits_per_second
    40000000.0
    """

    name: str
    flops_per_second: float
    down_bits_per_second: float
    up_bits_per_second: float
    latency_seconds: float = 0.0
    """Fixed time per round: connecting, starting, waking up."""
    memory_bytes: float | None = None
    count: int = 1

    def __post_init__(self) -> None:
        for field in FIELDS:
            value = getattr(self, field.name)
            if value is not None:
                problem = value_problem(field, value)
                if problem:
                    raise FleetError(f"device {self.name!r}: {field.name}: {problem}")
        if self.count < 1:
            raise FleetError(f"device {self.name!r}: count is {self.count}; it is at least 1.")


def value_problem(field: Field, value: float) -> str:
    """What is wrong with a value, in a sentence; empty where nothing is.

    >>> value_problem(FIELDS[1], 20.0)
    "a download bandwidth of 20 bit/s is less than any device's (1000 bit/s): is the unit \
right? Write it with its unit, such as '20 Mbit/s'."
    """
    shown = f"a {field.what} of {value:g} {field.unit}"
    if not math.isfinite(value):
        return f"{shown} is not a number. Give one, such as {field.usual!r}."
    if value < 0:
        return f"{shown} is negative. Give a positive number, such as {field.usual!r}."
    if value == 0 and field.lowest > 0:
        return (
            f"{shown} means that the device never finishes. Give a positive number, such as "
            f"{field.usual!r}, or leave the device out."
        )
    if not field.lowest <= value < field.highest:
        side = "less" if value < field.lowest else "more"
        limit = field.lowest if value < field.lowest else field.highest
        return (
            f"{shown} is {side} than any device's ({limit:g} {field.unit}): is the unit right? "
            f"Write it with its unit, such as {field.usual!r}."
        )
    return ""
