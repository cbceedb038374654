"""Read a fleet from a TOML or CSV file, and from another how likely each device is there.

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
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import field_validator

from fedplt.builtin import find_fleet
from fedplt.configuration.config_errors import line_of, parse_toml, read_text, validate
from fedplt.configuration.device_columns import check_columns, device_profile
from fedplt.configuration.fleet_config import WorkConfig
from fedplt.configuration.section import Section
from fedplt.errors import FedpltError, FleetError, did_you_mean
from fedplt.fleet import DeviceProfile, FleetTarget
from fedplt.text import brief


def csv_rows(
    text: str,
    path: Path,
    error_type: type[FedpltError],
    check_columns: Callable[[list[str]], None],
    example: str,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each row stands (for messages), and its values by column; empty cells are left out.

    The first line names the columns (``example`` shows how); ``check_columns`` raises
    ``error_type`` if they are wrong. Lines that start with ``#`` are comments.
    """
    lines = text.splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith("#")), None)
    if first is None:
        raise error_type(f"{path} is empty. Its first line names the columns: {example}.")
    reader = csv.reader(io.StringIO(text), delimiter=max(",;\t", key=first.count))
    header: list[str] = []
    for cells in _parsed(reader, path, error_type):
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
            raise error_type(
                f"{place}: {len(values)} values for {len(header)} columns ({', '.join(header)})."
            )
        else:
            yield place, {key: value for key, value in zip(header, values, strict=True) if value}


def _parsed(
    reader: Iterable[list[str]], path: Path, error_type: type[FedpltError]
) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:  # such as a cell of a megabyte
        raise error_type(f"{path} is not valid CSV: {error}") from error


Row = tuple[str, dict[str, Any]]
"""Where a device is described (for messages), and its columns."""


@dataclass(frozen=True)
class FleetFile:
    """What a file says: the devices, and in TOML maybe the work and the target."""

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
        return FleetFile(_devices(_csv_rows(text, path), path), WorkConfig(), FleetTarget())
    values = parse_toml(text, path, FleetError)
    tables = validate(_Tables, values, FleetError, text=text, where=str(path))
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
                "Give every device its own, or use count for devices that are alike."
            )
        devices[profile.name], places[profile.name] = profile, place
    if not devices:
        table = "a [[device]] table with name, speed, down and up"
        missing = "a row below the header" if path.suffix.lower() == ".csv" else table
        raise FleetError(f"{path} has no devices: add {missing}.")
    return tuple(devices.values())


def _csv_rows(text: str, path: Path) -> Iterator[Row]:
    example = "name,gflops,mbps_down,mbps_up"
    return csv_rows(text, path, FleetError, check_columns, example)


def _toml_rows(tables: _Tables, text: str, path: Path) -> Iterator[Row]:
    for index, table in enumerate(tables.device):
        line = line_of(text, ["device", index])
        place = f"{path}, " + (f"line {line}" if line else f"device {index + 1}")
        _check_columns(list(table), place)
        yield place, table


def _check_columns(names: list[str], place: str) -> None:
    try:
        check_columns(names)
    except FleetError as error:
        raise FleetError(f"{place}: {error}") from error


Chances = tuple[tuple[float, ...], ...]
"""By round, then by client."""
FOR_PEOPLE = ("round", "hour", "day")
"""Columns that say what a row is about; they are not read."""


def read_availability(path: Path, names: Sequence[str]) -> Chances:
    """Chances to be there, (rows, names); devices without a column are always there."""
    known = list(dict.fromkeys(names))

    def check_columns(header: list[str]) -> None:
        for number, column in enumerate(header):
            if column not in (*known, *FOR_PEOPLE):
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
        raise FleetError(f"{path} has no rows; give one per round: the chance of each device.")
    return rows


def _chance(place: str, row: dict[str, str], name: str) -> float:
    text = row.get(name, "1")
    try:
        chance = float(text)
    except ValueError:
        chance = math.nan
    if not 0 <= chance <= 1:
        raise FleetError(
            f"{place}: {name} is {text!r}; it must be a chance from 0 (never there) to 1 (always)."
        )
    return chance
