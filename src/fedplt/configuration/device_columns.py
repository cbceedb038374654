"""The columns of a device file: what each means, and the device that a row of them describes.

A column either carries its unit in its name (``mbps_down``) and holds plain numbers, or it is named
after the quantity (``down``) and every value carries its unit. Units are never guessed:
``mbps_down`` is in bits, ``MBps_down`` in bytes; an unknown unit is not corrected to a known one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedplt.errors import FleetError, did_you_mean
from fedplt.fleet import (
    BINARY,
    DOWN,
    LATENCY,
    MEMORY,
    PREFIXES,
    QUANTITIES,
    SPEED,
    UP,
    DeviceProfile,
    Quantity,
    parse_number,
    parse_quantity,
    value_problem,
)

MAX_COUNT = 1_000_000
_TEXTS = ("name", "count")
_FAVORITES = ("gflops", "mbps_down", "mbps_up", "latency_ms", "memory_mb")


@dataclass(frozen=True)
class Column:
    """What a column of a device file means."""

    quantity: Quantity
    factor: float | None = None
    """What its plain numbers are multiplied with; None: the values carry their units."""


def _columns() -> dict[str, Column]:
    by_value = {"speed": SPEED, "down": DOWN, "up": UP, "latency": LATENCY, "memory": MEMORY}
    result = {name: Column(quantity) for name, quantity in by_value.items()}
    result |= {quantity.name: Column(quantity, 1.0) for quantity in QUANTITIES}
    result |= {"latency_ms": Column(LATENCY, 1e-3), "latency_s": Column(LATENCY, 1.0)}
    result |= {"latency_us": Column(LATENCY, 1e-6), "latency_min": Column(LATENCY, 60.0)}
    result |= {f"memory_{p}ib": Column(MEMORY, factor) for p, factor in BINARY.items() if p}
    for prefix, factor in PREFIXES.items():
        if prefix:
            result[f"{prefix}flops"] = Column(SPEED, factor)
            result[f"{prefix}flops_per_second"] = Column(SPEED, factor)
            result[f"memory_{prefix}b"] = Column(MEMORY, factor)
        for quantity, side in ((DOWN, "down"), (UP, "up")):
            for name in (f"{prefix}bps_{side}", f"{side}_{prefix}bps"):
                result[name] = Column(quantity, factor)
            upper = prefix if prefix == "k" else prefix.upper()
            for name, size in ((f"{upper}bps", 1), (f"{upper}Bps", 8)):  # bits, bytes
                result[f"{name}_{side}"] = Column(quantity, size * factor)
                result[f"{side}_{name}"] = Column(quantity, size * factor)
    return result


COLUMNS = _columns()


def _suggested(quantity: Quantity, with_unit: bool = False) -> str:
    """Columns that give a quantity, the handiest first; those that carry a unit, or all."""
    names = [name for name, column in COLUMNS.items() if column.quantity is quantity]
    by_value = [] if with_unit else [name for name in names if COLUMNS[name].factor is None]
    handy = [name for name in names if name in _FAVORITES]
    return ", ".join([*handy, *by_value, quantity.name])


def check_columns(names: Sequence[str]) -> None:
    """Refuse unknown columns, the same quantity twice, and quantities that are missing."""
    seen: dict[Quantity, str] = {}
    for name in names:
        if names.count(name) > 1:
            raise FleetError(f"the column {name!r} is there twice.")
        if name in _TEXTS:
            continue
        if name not in COLUMNS:
            raise FleetError(f"there is no column {name!r}. {_hint(name)}")
        quantity = COLUMNS[name].quantity
        if quantity in seen:
            raise FleetError(f"{seen[quantity]} and {name} say the same thing; keep one.")
        seen[quantity] = name
    if "name" not in names:
        raise FleetError("the column 'name' is missing; every device needs one.")
    for wanted in QUANTITIES:
        if wanted.required and wanted not in seen:
            raise FleetError(f"the {wanted.what} is missing. Add one of: {_suggested(wanted)}.")


_KNOWN = (
    "Known are name, count, speed, down, up, latency, memory, or with units: gflops, mbps_down "
    "(megabits per second), MBps_down (megabytes per second), mbps_up, latency_ms, memory_gb."
)
_PLAIN = ("speed", "down", "up", "latency", "memory", "gflops", "mbps_down", "mbps_up")
_WORDS = {SPEED: "flop", DOWN: "down", UP: "up", LATENCY: "latency", MEMORY: "memory"}


def _hint(name: str) -> str:
    """What to write instead. A known quantity with an unknown unit is never corrected."""
    if not name:
        return "Give it a name."
    words = re.split(r"[\W_]+", name.lower())
    quantity = next(
        (q for q, known in _WORDS.items() if any(word.startswith(known) for word in words)), None
    )
    if quantity is None:
        near = did_you_mean(name, [*_TEXTS, *_PLAIN])
        if "mbps" in near:
            near += " (That is in megabits per second; MBps_down and MBps_up are in megabytes.)"
        return _KNOWN if near.startswith("Known") else near
    examples = {
        SPEED: "gflops (1e9 FLOP/s)",
        DOWN: "mbps_down (megabits per second), MBps_down (megabytes per second)",
        UP: "mbps_up (megabits per second), MBps_up (megabytes per second)",
        LATENCY: "latency_ms, latency_s",
        MEMORY: "memory_mb (1e6 bytes), memory_mib (2**20 bytes)",
    }[quantity]
    word = next(key for key, column in COLUMNS.items() if column == Column(quantity))
    return (
        f"Its unit is not known. Name it {examples}, or {word} with units in the values, such as "
        f"{quantity.example!r}."
    )


def device_profile(row: Mapping[str, Any]) -> DeviceProfile:
    """The device in a row of known columns; cells without a value are left out of the row."""
    name = " ".join(str(row.get("name", "")).split())  # one line, for tables
    if not name:
        raise FleetError("column name: a device has no name. Give it one.")
    numbers: dict[str, Any] = {"count": 1}
    for key, value in row.items():
        if key == "name":
            continue
        try:
            if key == "count":
                numbers[key] = _count(value)
            else:
                numbers[COLUMNS[key].quantity.name] = _number(COLUMNS[key], value)
        except FleetError as error:
            raise FleetError(f"device {name!r}, column {key}: {error}") from error
    for quantity in QUANTITIES:
        if quantity.required and quantity.name not in numbers:
            raise FleetError(f"device {name!r}: its {quantity.what} is missing.")
    return DeviceProfile(name=name, **numbers)


def _number(column: Column, value: Any) -> float:
    quantity = column.quantity
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise FleetError(f"{value!r} is not a number. Write it like {quantity.example!r}.")
    if column.factor is not None:
        number = column.factor * parse_number(quantity, str(value))
    else:
        try:
            number = parse_quantity(quantity, str(value))
        except FleetError as error:
            named = _suggested(quantity, with_unit=True)
            raise FleetError(f"{error} Or name the column after its unit: {named}.") from error
    if problem := value_problem(quantity, number):
        raise FleetError(problem)
    return number


def _count(value: Any) -> int:
    text = str(value)
    whole = not isinstance(value, bool) and re.fullmatch(r"\d{1,7}", text)
    if not whole or not 1 <= int(text) <= MAX_COUNT:
        raise FleetError(
            f"{value!r} is not a number of devices; give a whole number from 1 to {MAX_COUNT:,}."
        )
    return int(text)
