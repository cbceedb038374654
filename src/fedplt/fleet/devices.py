"""A device: its speed, bandwidths and memory, units as people write them, plausible ranges."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fedplt.errors import FleetError


@dataclass(frozen=True)
class Quantity:
    """A number that describes a device: its unit, and the range of any real device."""

    name: str
    what: str
    unit: str
    lowest: float
    highest: float
    example: str
    """An example value with its unit."""
    required: bool = True


SPEED = Quantity("flops_per_second", "speed", "FLOP/s", 1e5, 1e15, "20 GFLOP/s")
DOWN = Quantity("down_bits_per_second", "download bandwidth", "bit/s", 1e3, 1e12, "20 Mbit/s")
UP = Quantity("up_bits_per_second", "upload bandwidth", "bit/s", 1e3, 1e12, "5 Mbit/s")
LATENCY = Quantity("latency_seconds", "latency", "s", 0.0, 3600.0, "0.2 s", required=False)
MEMORY = Quantity("memory_bytes", "memory", "B", 1e4, 1e14, "2 GB", required=False)
POWER = Quantity("watts", "power", "W", 1e-4, 1e5, "5 W", required=False)
QUANTITIES = (SPEED, DOWN, UP, LATENCY, MEMORY, POWER)

PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
BINARY = {"": 1.0, "k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}
_UNITS = {
    "FLOP/s": dict.fromkeys(("flop/s", "flops/s", "flops"), 1.0),
    "bit/s": dict.fromkeys(("bit/s", "bits/s", "Bit/s", "Bits/s", "bps", "b/s"), 1.0)
    | dict.fromkeys(("B/s", "Bps", "Byte/s", "Bytes/s", "bytes/s", "byte/s"), 8.0),
    "B": dict.fromkeys(("B", "Byte", "Bytes", "bytes"), 1.0),
    "W": dict.fromkeys(("W", "watts", "Watts"), 1.0),
    "s": {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0},
}


def value_problem(quantity: Quantity, value: float) -> str:
    """What is wrong with a value, in a sentence; empty if nothing is.

    >>> value_problem(DOWN, 20.0)
    "a download bandwidth of 20 bit/s is less than any device's (1000 bit/s): is the unit \
right? Write it with its unit, such as '20 Mbit/s'."
    """
    article = "an" if quantity is UP else "a"
    shown = f"{article} {quantity.what} of {value:g} {quantity.unit}"
    if not math.isfinite(value):
        return f"{shown} is not a number. Give one, such as {quantity.example!r}."
    if value < 0 or (value == 0 and quantity.lowest > 0):
        kind = "negative" if value < 0 else "zero"
        return f"{shown} is {kind}. Give a positive number, such as {quantity.example!r}."
    if quantity.lowest <= value < quantity.highest:
        return ""
    low = value < quantity.lowest
    side, limit = ("less", quantity.lowest) if low else ("more", quantity.highest)
    return (
        f"{shown} is {side} than any device's ({limit:g} {quantity.unit}): is the unit right? "
        f"Write it with its unit, such as {quantity.example!r}."
    )


def parse_quantity(quantity: Quantity, text: str) -> float:
    """Parse a number with its unit into the quantity's own unit; bits and bytes differ.

    >>> parse_quantity(DOWN, "20 Mbit/s"), parse_quantity(DOWN, "2.5 MB/s")
    (20000000.0, 20000000.0)
    >>> parse_quantity(LATENCY, "200 ms"), parse_quantity(SPEED, "1.5 TFLOP/s")
    (0.2, 1500000000000.0)
    >>> parse_quantity(DOWN, "1 MiB/s"), parse_quantity(MEMORY, "1 MiB")
    (8388608.0, 1048576.0)
    """
    match = re.fullmatch(r"\s*([-+]?[\d.,_]+(?:[eE][-+]?\d+)?)\s*([A-Za-z/ ]*?)\s*", text)
    like = f"Write it like {quantity.example!r}."
    if match is None:
        raise FleetError(f"{text!r} is not a number with a unit. {like}")
    number, unit = parse_number(quantity, match[1]), match[2]
    if not unit:
        raise FleetError(f"{text!r} has no unit. {like}")
    factor = _factor(quantity, unit.replace(" ", ""))
    if factor is None:
        raise FleetError(f"{text!r}: {unit!r} is not a unit of {quantity.what}. {like}")
    return number * factor


def parse_number(quantity: Quantity, text: str) -> float:
    """Parse a plain number, whose unit is given elsewhere."""
    try:
        return float(text.replace("_", ""))
    except ValueError:
        hint = " Decimals take a point, not a comma." if "," in text else ""
        like = f"Write it like {quantity.example.split()[0]!r}."
        raise FleetError(f"{text!r} is not a number.{hint} {like}") from None


def _factor(quantity: Quantity, unit: str) -> float | None:
    """The factor from this unit to the quantity's base unit; None if it has no such unit."""
    match = re.fullmatch(r"([kKMGT]?)(.+)", unit)
    assert match is not None  # the unit is not empty
    prefix, rest = match[1].lower(), match[2].lower() if quantity is SPEED else match[2]
    binary = prefix and quantity is not SPEED and rest.startswith("i")  # MiB: 2**20 bytes
    factor = _UNITS[quantity.unit].get(rest.removeprefix("i") if binary else rest)
    return factor * (BINARY if binary else PREFIXES)[prefix] if factor else None


@dataclass(frozen=True)
class DeviceProfile:
    """A device, or ``count`` identical devices.

    Implausible numbers (an upload of 20 bit/s, a phone with 1e15 FLOP/s) are refused: nearly always
    the unit is wrong.

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
    watts: float | None = None
    """Power while it computes and sends; for :func:`fedplt.advise`."""

    def __post_init__(self) -> None:
        for quantity in QUANTITIES:
            value = getattr(self, quantity.name)
            if value is not None and (problem := value_problem(quantity, value)):
                raise FleetError(f"device {self.name!r}: {quantity.name}: {problem}")
        if self.count < 1:
            raise FleetError(f"device {self.name!r}: count is {self.count}; it is at least 1.")
