"""Read a fleet from a TOML or CSV file, and say clearly what is wrong with it.

CSV: one row per device (or per kind of device, with a ``count``). TOML: ``[[device]]`` tables, and
optionally ``[work]`` (what a round costs) and ``[target]`` (the time to aim for)::

    [work]
    model = "fcn"
    local_steps = 16
    batch_size = 64

    [[device]]
    name = "phone"
    speed = "80 GFLOP/s"
    down = "120 Mbit/s"
    up = "40 Mbit/s"
"""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedplt.errors import FleetError, did_you_mean
from fedplt.fleet.devices import FIELDS, DeviceProfile, value_problem
from fedplt.fleet.quantities import COLUMNS, as_number, needed_columns, parse_quantity

_OPTIONAL = {"latency_seconds", "memory_bytes"}
_WORDS = {"name", "count"}
MAX_COUNT = 1_000_000


@dataclass(frozen=True)
class FleetFile:
    """What a file says: the devices, and in TOML maybe the work and the target."""

    devices: tuple[DeviceProfile, ...]
    work: Mapping[str, Any]
    target: Mapping[str, Any]


def read_fleet(path: Path) -> FleetFile:
    """The fleet in a ``.toml`` or ``.csv`` file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FleetError(f"{path} cannot be read: {reason}") from error
    work: Any = {}
    target: Any = {}
    if path.suffix.lower() == ".csv":
        rows = _csv_rows(text, path)
    elif path.suffix.lower() == ".toml":
        rows, work, target = _toml_rows(text, path)
    else:
        raise FleetError(f"{path}: a fleet is a .toml or a .csv file.")
    if not rows:
        raise FleetError(
            f"{path} has no devices: "
            + (
                "add a row below the header."
                if path.suffix.lower() == ".csv"
                else "add a [[device]] table with name, speed, down and up."
            )
        )
    devices: dict[str, DeviceProfile] = {}
    places: dict[str, str] = {}
    for place, row in rows:
        profile = _profile(row, place)
        if profile.name in devices:
            raise FleetError(
                f"{place}: the name {profile.name!r} is taken already ({places[profile.name]}). "
                "Give every device its own, or use count for devices that are alike."
            )
        devices[profile.name], places[profile.name] = profile, place
    return FleetFile(tuple(devices.values()), work, target)


def _csv_rows(text: str, path: Path) -> list[tuple[str, dict[str, Any]]]:
    lines = text.splitlines()
    if not any(line.strip() and not line.startswith("#") for line in lines):
        raise FleetError(
            f"{path} is empty. Its first line names the columns: name,gflops,mbps_down,mbps_up."
        )
    first = next(line for line in lines if line.strip() and not line.startswith("#"))
    separator = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    header: list[str] = []
    rows: list[tuple[str, dict[str, Any]]] = []
    for cells in reader:
        values = [cell.strip() for cell in cells]
        if not any(values) or values[0].startswith("#"):
            continue
        place = f"{path}, line {reader.line_num}"
        if not header:
            header = values
            _check_columns(header, place)
            continue
        if len(values) != len(header):
            raise FleetError(
                f"{place}: {len(values)} values for {len(header)} columns ({', '.join(header)})."
            )
        rows.append((place, {k: v for k, v in zip(header, values, strict=True) if v != ""}))
    return rows


def _toml_rows(
    text: str, path: Path
) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, Any], dict[str, Any]]:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FleetError(f"{path} is not valid TOML: {error}") from error
    known = {"device", "work", "target"}
    for key in values:
        if key not in known:
            raise FleetError(f"{path}: there is no section {key!r}. {did_you_mean(key, known)}")
    tables = values.get("device", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise FleetError(f"{path}: write [[device]] with two brackets, one table per device.")
    for section in ("work", "target"):
        if not isinstance(values.get(section, {}), dict):
            raise FleetError(f"{path}: {section} is a table: write [{section}].")
    lines = [
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if re.match(r"\s*\[\[\s*device\s*\]\]", line)
    ]
    rows = []
    for index, table in enumerate(tables):
        where = f"line {lines[index]}" if len(lines) == len(tables) else f"device {index + 1}"
        place = f"{path}, {where}"
        _check_columns(list(table), place)
        rows.append((place, dict(table)))
    return rows, values.get("work", {}), values.get("target", {})


def _check_columns(names: list[str], place: str) -> None:
    """Unknown columns, the same quantity twice, quantities that are missing."""
    seen: dict[str, str] = {}
    for name in names:
        if names.count(name) > 1:
            raise FleetError(f"{place}: the column {name!r} is there twice.")
        if name in _WORDS:
            continue
        if name not in COLUMNS:
            hint = did_you_mean(name, [*COLUMNS, *_WORDS]) if name else "Give it a name."
            if hint.startswith("Known"):
                hint = "Known are name, count, speed, down, up, latency, memory, or with units: "
                hint += "gflops, mbps_down, mbps_up, latency_ms, memory_gb."
            raise FleetError(f"{place}: there is no column {name!r}. {hint}")
        field = COLUMNS[name].field.name
        if field in seen:
            raise FleetError(f"{place}: {seen[field]} and {name} say the same thing; keep one.")
        seen[field] = name
    if "name" not in names:
        raise FleetError(f"{place}: the column 'name' is missing; every device needs one.")
    for wanted in FIELDS:
        if wanted.name not in seen and wanted.name not in _OPTIONAL:
            raise FleetError(
                f"{place}: the {wanted.what} is missing. Add one of: {needed_columns(wanted)}."
            )


def _profile(row: dict[str, Any], place: str) -> DeviceProfile:
    name = " ".join(str(row.get("name", "")).split())  # one line, for tables
    if not name:
        raise FleetError(f"{place}, column name: a device has no name. Give it one.")
    numbers: dict[str, Any] = {}
    for key, value in row.items():
        if key in _WORDS:
            continue
        column = COLUMNS[key]
        try:
            number = _number(key, value)
        except FleetError as error:
            raise FleetError(f"{place}, device {name!r}, column {key}: {error}") from error
        problem = value_problem(column.field, number)
        if problem:
            raise FleetError(f"{place}, device {name!r}, column {key}: {problem}")
        numbers[column.field.name] = number
    for field in FIELDS:
        if field.name not in numbers and field.name not in _OPTIONAL:
            raise FleetError(f"{place}, device {name!r}: its {field.what} is missing.")
    return DeviceProfile(name=name, count=_count(row.get("count", 1), name, place), **numbers)


def _number(key: str, value: Any) -> float:
    column = COLUMNS[key]
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise FleetError(f"{value!r} is not a number. Write it like {column.field.usual!r}.")
    if column.factor is None:
        return parse_quantity(column.field, value if isinstance(value, str) else f"{value}")
    number = as_number(value, column.field) if isinstance(value, str) else float(value)
    return number * column.factor


def _count(value: Any, name: str, place: str) -> int:
    text = str(value)
    whole = not isinstance(value, bool) and re.fullmatch(r"\d{1,7}", text)
    if not whole or not 1 <= int(text) <= MAX_COUNT:
        raise FleetError(
            f"{place}, device {name!r}, column count: {value!r} is not a number of devices; give a "
            f"whole number from 1 to {MAX_COUNT:,}."
        )
    return int(text)
