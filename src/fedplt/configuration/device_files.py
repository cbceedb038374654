"""Read and validate a fleet from a TOML or CSV file.

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

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import field_validator

from fedplt.builtin import find_fleet
from fedplt.configuration.config_errors import parse_toml, read_text, validate
from fedplt.configuration.config_places import line_of
from fedplt.configuration.csv_file import csv_rows
from fedplt.configuration.device_columns import check_columns, device_profile
from fedplt.configuration.fleet_config import TargetConfig, WorkConfig
from fedplt.configuration.section import Section
from fedplt.errors import FleetError
from fedplt.fleet import DeviceProfile
from fedplt.text import brief

Row = tuple[str, dict[str, Any]]
"""Where a device is described (for messages), and its columns."""


@dataclass(frozen=True)
class FleetFile:
    """What a file says: the devices, and in TOML maybe the work and the target."""

    devices: tuple[DeviceProfile, ...]
    work: WorkConfig
    target: TargetConfig

    __repr__ = brief


class _Tables(Section):
    """A fleet in TOML. The columns of devices are checked one by one, later."""

    device: list[dict[str, Any]] = []  # noqa: RUF012 (pydantic copies it)
    work: WorkConfig = WorkConfig()
    target: TargetConfig = TargetConfig()

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
        return FleetFile(_devices(_csv_rows(text, path), path), WorkConfig(), TargetConfig())
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
