"""Update norm and effective perturbation by round, from the records of a run.

They are read from each record's ``diagnostics``, where the run recorded them. Rounds without them
(nothing moved, or diagnostics were off) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedplt.federation import History


@dataclass(frozen=True)
class Series:
    """Curves over rounds; empty if nothing was recorded."""

    rounds: tuple[int, ...] = ()
    update_norm: tuple[float, ...] = ()
    r""":math:`\sqrt{MG} = \lVert \Delta w \rVert`."""
    effective_perturbation: tuple[float, ...] = ()
    layer_effective_perturbation: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rounds)

    def to_json(self) -> dict[str, Any]:
        layers = self.layer_effective_perturbation.items()
        return {
            "rounds": list(self.rounds),
            "update_norm": _short(self.update_norm),
            "effective_perturbation": _short(self.effective_perturbation),
            "layers": {name: _short(values) for name, values in layers},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Series:
        return cls(
            tuple(data["rounds"]),
            _long(data["update_norm"]),
            _long(data["effective_perturbation"]),
            {name: _long(values) for name, values in data["layers"].items()},
        )


def _long(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in values)


def _short(values: Iterable[float]) -> list[float | None]:
    """Rounded to four digits, None for NaN: JSON has no NaN."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]


def series_of(history: History) -> Series:
    """The curves of a run."""
    found = [
        (record.round, numbers)
        for record in history.rounds
        if (numbers := getattr(record, "diagnostics", None))
        and numbers.get("effective_perturbation") is not None
    ]
    if not found:
        return Series()
    layers = [_layers(numbers) for _, numbers in found]
    return Series(
        tuple(round for round, _ in found),
        tuple(math.sqrt(numbers["update_magnitude"]) for _, numbers in found),
        tuple(float(numbers["effective_perturbation"]) for _, numbers in found),
        {name: tuple(row.get(name, math.nan) for row in layers) for name in layers[0]},
    )


def _layers(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Effective perturbation by layer."""
    return {
        name: float(layer.get("effective_perturbation", math.nan))
        for name, layer in numbers["layers"].items()
    }
