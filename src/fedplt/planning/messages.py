"""Assignments that came as plain values, from another process or another machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from fedplt.errors import PlanError
from fedplt.planning.assignment import Assignment, SliceAssignment
from fedplt.planning.coupled_units import Spaces, Units
from fedplt.planning.layers import Layers, Ranges
from fedplt.planning.submodel_assignment import SubmodelAssignment


def read_assignment(
    layers: Layers,
    message: Mapping[str, Any],
    local: frozenset[str],
    find_spaces: Callable[[], Spaces],
) -> Assignment:
    """The assignment that ``Assignment.to_message`` wrote; PlanError if it does not fit the layers.

    ``find_spaces`` is called for a sub-model.
    """
    if set(message) == {"slices"}:
        slices = message["slices"]
        if not isinstance(slices, list) or len(slices) != len(layers):
            raise PlanError(f"an assignment has slices of {len(layers)} layers.")
        pairs = zip(slices, layers, strict=True)
        ranges = tuple(_ranges(part, layer.name, layer.num_sublayers) for part, layer in pairs)
        return SliceAssignment(layers, ranges, local)
    if set(message) == {"held", "rate"}:
        spaces, held, rate = find_spaces(), message["held"], message["rate"]
        widths = spaces.widths
        if not isinstance(held, list) or len(held) != len(widths):
            raise PlanError(f"a sub-model has units of {len(widths)} groups of coupled layers.")
        if not isinstance(rate, (int, float)) or not 0 < rate <= 1:
            raise PlanError(f"the rate of a sub-model is {rate!r}; it is above 0 and at most 1.")
        units = tuple(_units(part, width) for part, width in zip(held, widths, strict=True))
        return SubmodelAssignment(layers, local, spaces, units, float(rate))
    raise PlanError(f"an assignment says slices, or held and rate; this one says {sorted(message)}")


def _ranges(part: Any, name: str, number: int) -> Ranges:
    try:
        ranges = tuple(range(start, stop) for start, stop in part)
    except (TypeError, ValueError):
        ranges = (range(0),)
    ends = [0, *(place for each in ranges for place in (each.start, each.stop)), number]
    if any(before > after for before, after in pairwise(ends)) or not all(ranges):
        raise PlanError(
            f"layer {name}: slices are ascending ranges within its {number} sub-layers."
        )
    return ranges


def _units(part: Any, width: int) -> Units:
    try:
        units: Units = np.asarray(part, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        units = np.empty((0, 0), dtype=np.int64)
    inside = units.ndim == 1 and len(units) and units[0] >= 0 and units[-1] < width
    if not inside or (np.diff(units) <= 0).any():
        raise PlanError(f"held units are ascending and within the {width} of their group.")
    return units
