"""Read a fleet from a TOML or CSV file, and the devices' availability from another CSV file.

CSV: one row per device (or per kind of device, with a ``count``). TOML: ``[[device]]`` tables, and
optionally ``[work]`` (what a round costs) and ``[target]`` (the time to plan for)::

    [work]
    model = "fcn"
    local_steps = 16
    batch_size = 64

    [[device]]
    name = "phone"
    speed = "80 GFLOP/s"
    down = "120 Mbit/s"
    up = "40 Mbit/s"

A column either carries its unit in its name (``mbps_down``) and holds plain numbers, or it is named
after the quantity (``down``) and every value carries its unit. Units are never guessed:
``mbps_down`` is in bits, ``MBps_down`` in bytes; an unknown unit is not corrected to a known one.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import field_validator

from fedplt.configs import find_fleet
from fedplt.configuration.config_file import Source, line_of, parse_toml, read_text, validate
from fedplt.configuration.fleet_config import WorkConfig
from fedplt.errors import FedpltError, FleetError, did_you_mean
from fedplt.fleet import (
    BINARY,
    DOWN,
    LATENCY,
    MEMORY,
    POWER,
    PREFIXES,
    QUANTITIES,
    SPEED,
    UP,
    DeviceProfile,
    FleetTarget,
    Quantity,
    parse_number,
    parse_quantity,
    value_problem,
)
from fedplt.schema import Section
from fedplt.text import brief

MAX_COUNT = 1_000_000
_TEXTS = ("name", "count")
_BANDWIDTH = "mbps_{0} (megabits per second), MBps_{0} (megabytes per second)"
_BY_VALUE = {
    "speed": (SPEED, "gflops (1e9 FLOP/s)"),
    "down": (DOWN, _BANDWIDTH.format("down")),
    "up": (UP, _BANDWIDTH.format("up")),
    "latency": (LATENCY, "latency_ms, latency_s"),
    "memory": (MEMORY, "memory_mb (1e6 bytes), memory_mib (2**20 bytes)"),
    "power": (POWER, "watts"),
}
"""Columns whose values carry their units: the quantity, and common columns with a unit."""


def _columns() -> dict[str, tuple[Quantity, float | None]]:
    """Column -> its quantity and the factor of its plain numbers (None: values have units)."""
    result: dict[str, tuple[Quantity, float | None]] = {
        name: (quantity, None) for name, (quantity, _) in _BY_VALUE.items()
    }
    result |= {quantity.name: (quantity, 1.0) for quantity in QUANTITIES}
    result |= {"latency_ms": (LATENCY, 1e-3), "latency_s": (LATENCY, 1.0)}
    result |= {"latency_us": (LATENCY, 1e-6), "latency_min": (LATENCY, 60.0)}
    result |= {f"memory_{p}ib": (MEMORY, factor) for p, factor in BINARY.items() if p}
    for prefix, factor in PREFIXES.items():
        if prefix:
            result[f"{prefix}flops"] = (SPEED, factor)
            result[f"{prefix}flops_per_second"] = (SPEED, factor)
            result[f"memory_{prefix}b"] = (MEMORY, factor)
        upper = prefix if prefix == "k" else prefix.upper()
        for quantity, side in ((DOWN, "down"), (UP, "up")):
            for unit, size in ((f"{prefix}bps", 1), (f"{upper}bps", 1), (f"{upper}Bps", 8)):
                result[f"{unit}_{side}"] = result[f"{side}_{unit}"] = (quantity, size * factor)
    return result


COLUMNS = _columns()


def check_columns(names: Sequence[str]) -> None:
    """Refuse unknown columns, the same quantity twice, and quantities that are missing."""
    seen: dict[Quantity, str] = {}
    for name in names:
        if names.count(name) > 1:
            raise FleetError(f"there are two columns {name!r}.")
        if name in _TEXTS:
            continue
        if name not in COLUMNS:
            raise FleetError(f"there is no column {name!r}. {_hint(name)}")
        quantity, _ = COLUMNS[name]
        if quantity in seen:
            raise FleetError(f"{seen[quantity]} and {name} give the same quantity; keep one.")
        seen[quantity] = name
    if "name" not in names:
        raise FleetError("the column 'name' is missing; every device needs one.")
    for word, (wanted, _) in _BY_VALUE.items():
        if wanted.required and wanted not in seen:
            raise FleetError(f"the {wanted.what} is missing. Add {_how_to_name(word)}")


def _how_to_name(word: str) -> str:
    quantity, examples = _BY_VALUE[word]
    return f"{examples}, or {word} with units in the values, such as {quantity.example!r}."


def _hint(name: str) -> str:
    """What to write instead. For a known quantity with an unknown unit, no unit is guessed."""
    if not name:
        return "Give it a name."
    parts = re.split(r"[\W_]+", name.lower())
    for word in _BY_VALUE:
        start = "flop" if word == "speed" else word
        if any(part.startswith(start) for part in parts):
            return f"Its unit is not known. Name it {_how_to_name(word)}"
    near = did_you_mean(name, [*_TEXTS, *_BY_VALUE, "gflops", "mbps_down", "mbps_up"])
    if "mbps" in near:
        near += " (That is in megabits per second; MBps_down and MBps_up are in megabytes.)"
    if not near.startswith("Known"):
        return near
    with_units = ", ".join(examples for _, examples in _BY_VALUE.values())
    return f"Known are {', '.join([*_TEXTS, *_BY_VALUE])}, or with units: {with_units}."


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
                numbers[COLUMNS[key][0].name] = _number(*COLUMNS[key], value)
        except FleetError as error:
            raise FleetError(f"device {name!r}, column {key}: {error}") from error
    for quantity in QUANTITIES:
        if quantity.required and quantity.name not in numbers:
            raise FleetError(f"device {name!r}: its {quantity.what} is missing.")
    return DeviceProfile(name=name, **numbers)


def _number(quantity: Quantity, factor: float | None, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise FleetError(f"{value!r} is not a number. Write it like {quantity.example!r}.")
    if factor is not None:
        number = factor * parse_number(quantity, str(value))
    else:
        try:
            number = parse_quantity(quantity, str(value))
        except FleetError as error:
            named = next(examples for kind, examples in _BY_VALUE.values() if kind is quantity)
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


def csv_rows(
    text: str,
    path: Path,
    error_type: type[FedpltError],
    check_columns: Callable[[list[str]], None],
    example: str,
) -> Iterator[tuple[str, dict[str, str]]]:
    """The place of each row (for messages) and its values by column; empty cells are left out.

    The first line names the columns (``example`` shows how); ``check_columns`` raises
    ``error_type`` if they are wrong. Lines that start with ``#`` are comments.
    """
    lines = text.splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith("#")), None)
    if first is None:
        raise error_type(f"{path} is empty. Its first line names the columns: {example}.")
    reader = csv.reader(io.StringIO(text), delimiter=max(",;\t", key=first.count))
    header: list[str] = []
    try:
        for cells in reader:
            values = [cell.strip() for cell in cells]
            if not any(values) or values[0].startswith("#"):
                continue
            place = f"{path}, line {reader.line_num}"
            if not header:
                header = values
                try:
                    check_columns(header)
                except error_type as error:
                    raise error_type(f"{place}: {error}") from error
            elif len(values) != len(header):
                given = f"{len(values)} values for {len(header)} columns"
                raise error_type(f"{place}: {given} ({', '.join(header)}).")
            else:
                pairs = zip(header, values, strict=True)
                yield place, {key: value for key, value in pairs if value}
    except csv.Error as error:  # such as a cell of a megabyte
        raise error_type(f"{path} is not valid CSV: {error}") from error


Row = tuple[str, dict[str, Any]]
"""The place of a device's row (for messages), and its values by column."""


@dataclass(frozen=True)
class FleetFile:
    """The devices in a file, and in TOML optionally the work and the target."""

    devices: tuple[DeviceProfile, ...]
    work: WorkConfig
    target: FleetTarget

    __repr__ = brief


class _Tables(Section):
    """A fleet in TOML. The columns of devices are checked one by one, later."""

    device: list[dict[str, Any]] = []  # noqa: RUF012 (pydantic copies it)
    work: WorkConfig = WorkConfig()
    target: FleetTarget = FleetTarget()

    @field_validator("device", mode="before")
    @classmethod
    def _two_brackets(cls, tables: Any) -> Any:
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ValueError("write [[device]] with two brackets, one table per device.")
        return tables


def read_fleet(path: Path) -> FleetFile:
    """The fleet in a ``.toml`` or ``.csv`` file, or a built-in one by name."""
    path = find_fleet(path)
    kind = path.suffix.lower()
    if kind not in (".toml", ".csv"):
        raise FleetError(f"{path}: a fleet is a .toml or a .csv file.")
    text = read_text(path, FleetError)
    if kind == ".csv":
        rows = csv_rows(text, path, FleetError, check_columns, "name,gflops,mbps_down,mbps_up")
        return FleetFile(_devices(rows, path), WorkConfig(), FleetTarget())
    values = parse_toml(text, path, FleetError)
    tables = validate(_Tables, values, FleetError, Source(text, str(path)))
    return FleetFile(_devices(_toml_rows(tables, text, path), path), tables.work, tables.target)


def _devices(rows: Iterator[Row], path: Path) -> tuple[DeviceProfile, ...]:
    devices: dict[str, DeviceProfile] = {}
    places: dict[str, str] = {}
    for place, row in rows:
        try:
            profile = device_profile(row)
        except FleetError as error:
            raise FleetError(f"{place}, {error}") from error
        if profile.name in devices:
            raise FleetError(
                f"{place}: the name {profile.name!r} is taken already ({places[profile.name]}). "
                "Give every device its own, or use count for equal devices."
            )
        devices[profile.name], places[profile.name] = profile, place
    if not devices:
        table = "a [[device]] table with name, speed, down and up"
        missing = "a row below the header" if path.suffix.lower() == ".csv" else table
        raise FleetError(f"{path} has no devices: add {missing}.")
    return tuple(devices.values())


def _toml_rows(tables: _Tables, text: str, path: Path) -> Iterator[Row]:
    for index, table in enumerate(tables.device):
        line = line_of(text, ["device", index])
        place = f"{path}, " + (f"line {line}" if line else f"device {index + 1}")
        try:
            check_columns(list(table))
        except FleetError as error:
            raise FleetError(f"{place}: {error}") from error
        yield place, table


Chances = tuple[tuple[float, ...], ...]
"""Probabilities by round, then by client."""
LABEL_COLUMNS = ("round", "hour", "day")
"""Columns for human readers; they are ignored."""


def read_availability(path: Path, names: Sequence[str]) -> Chances:
    """Probabilities of being available, (rows, names); 1 for devices without a column."""
    known = list(dict.fromkeys(names))

    def check_columns(header: list[str]) -> None:
        for number, column in enumerate(header):
            if column not in (*known, *LABEL_COLUMNS):
                raise FleetError(f"there is no device {column!r}. {did_you_mean(column, known)}")
            if column in header[:number]:
                raise FleetError(f"there are two columns {column!r}; leave one out.")

    example = ",".join(["hour", *known])
    rows = tuple(
        tuple(_chance(place, row, name) for name in names)
        for place, row in csv_rows(
            read_text(path, FleetError), path, FleetError, check_columns, example
        )
    )
    if not rows:
        raise FleetError(f"{path} has no rows; give one per round: the probability of each device.")
    return rows


def _chance(place: str, row: dict[str, str], name: str) -> float:
    text = row.get(name, "1")
    try:
        chance = float(text)
    except ValueError:
        chance = math.nan
    if not 0 <= chance <= 1:
        raise FleetError(
            f"{place}: {name} is {text!r}; give a probability: 0 (never available) to 1 (always)."
        )
    return chance
