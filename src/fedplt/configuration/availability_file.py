"""Read how likely each device is there: one row per round, one column per device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fedplt.configuration.config_errors import read_text
from fedplt.configuration.csv_file import csv_rows
from fedplt.errors import FleetError, did_you_mean

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
