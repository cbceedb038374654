"""Numbers with units, as people write them: a column ``mbps_down``, or the text ``20 Mbit/s``.

A column either carries its unit in its name, and then holds a plain number, or it is named after
the quantity alone (``speed``, ``down``, ``up``, ``latency``, ``memory``), and then every value
carries its unit. A plain number without any unit is refused, never guessed at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedplt.errors import FleetError
from fedplt.fleet.devices import FIELDS, Field

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


@dataclass(frozen=True)
class Column:
    """What a column of a device file means."""

    field: Field
    factor: float | None
    """What its plain numbers are multiplied with; None: the values carry their units."""


def _columns() -> dict[str, Column]:
    speed, down, up, latency, memory = FIELDS
    result = {field.name: Column(field, 1.0) for field in FIELDS}
    result |= {
        "speed": Column(speed, None),
        "down": Column(down, None),
        "up": Column(up, None),
        "latency": Column(latency, None),
        "memory": Column(memory, None),
        "latency_ms": Column(latency, 1e-3),
        "latency_s": Column(latency, 1.0),
    }
    for prefix, factor in _PREFIXES.items():
        if prefix:
            result[f"{prefix}flops"] = Column(speed, factor)
            result[f"{prefix}flops_per_second"] = Column(speed, factor)
            result[f"memory_{prefix}b"] = Column(memory, factor)
        for field, side in ((down, "down"), (up, "up")):
            result[f"{prefix}bps_{side}"] = Column(field, factor)
            result[f"{side}_{prefix}bps"] = Column(field, factor)
    return result


COLUMNS = _columns()


def needed_columns(field: Field) -> str:
    """How a missing quantity could be given."""
    names = [name for name, column in COLUMNS.items() if column.field is field]
    by_value = [name for name in names if COLUMNS[name].factor is None]
    usual = ("gflops", "mbps_down", "mbps_up", "latency_ms", "memory_mb")
    return ", ".join([*(name for name in names if name in usual), *by_value, field.name])


def parse_quantity(field: Field, text: str) -> float:
    """A number with its unit, in the field's own unit; bits and bytes are told apart.

    >>> parse_quantity(FIELDS[1], "20 Mbit/s"), parse_quantity(FIELDS[1], "2.5 MB/s")
    (20000000.0, 20000000.0)
    >>> parse_quantity(FIELDS[3], "200 ms"), parse_quantity(FIELDS[0], "1.5 TFLOP/s")
    (0.2, 1500000000000.0)
    """
    match = re.fullmatch(r"\s*([-+]?[\d.,_]+(?:[eE][-+]?\d+)?)\s*([A-Za-z/ ]*?)\s*", text)
    if match is None:
        raise FleetError(f"{text!r} is not a number with a unit. Write it like {field.usual!r}.")
    number, unit = as_number(match[1], field), match[2]
    if not unit:
        raise FleetError(
            f"{text!r} has no unit. Write it like {field.usual!r}, or name the column after the "
            f"unit ({needed_columns(field)})."
        )
    return number * _factor(field, unit, text)


def as_number(text: str, field: Field) -> float:
    try:
        return float(text.replace("_", ""))
    except ValueError:
        hint = " Decimals take a point, not a comma." if "," in text else ""
        raise FleetError(
            f"{text!r} is not a number.{hint} Write it like {field.usual.split()[0]!r}."
        ) from None


def _factor(field: Field, unit: str, text: str) -> float:
    bare = unit.replace(" ", "")
    if field.unit == "s":
        factors = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "seconds": 1.0}
        if bare in factors:
            return factors[bare]
    elif match := re.fullmatch(r"([kKMGT]?)(.+)", bare):
        prefix, rest = _PREFIXES[match[1].lower()], match[2]
        if field.unit == "bit/s":
            if rest in ("bit/s", "bits/s", "bps", "b/s"):
                return prefix
            if rest in ("B/s", "Byte/s", "Bytes/s", "bytes/s", "byte/s"):
                return 8 * prefix
        if field.unit == "FLOP/s" and rest.lower() in ("flop/s", "flops/s", "flops"):
            return prefix
        if field.unit == "B" and rest in ("B", "Byte", "Bytes", "bytes", "iB"):
            return (
                {"": 1.0, "k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}[match[1].lower()]
                if rest == "iB"
                else prefix
            )
    raise FleetError(
        f"{text!r}: {unit!r} is not a unit of {field.what}. Write it like {field.usual!r}."
    )
