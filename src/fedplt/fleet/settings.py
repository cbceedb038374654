"""The ``[work]`` and ``[target]`` tables of a fleet file: what may be set, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fedplt.errors import FleetError, did_you_mean
from fedplt.fleet.planner import Target
from fedplt.fleet.workload import PaperWorkload


@dataclass(frozen=True)
class WorkSettings:
    """What a round's local training is."""

    cost: Literal["exact", "paper"] = "exact"
    """Exact FLOPs of a model, or the paper's formula for a number of parameters."""
    model: str = "fcn"
    options: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...] = ()
    """Of one example; built-in models know theirs."""
    num_parameters: int = 0
    """For the paper's formula, instead of a model."""
    bytes_per_parameter: float = 4.0
    local_steps: int = 16
    batch_size: int = 64

    def __post_init__(self) -> None:
        if self.cost not in ("exact", "paper"):
            raise FleetError(f"work.cost is {self.cost!r}. {did_you_mean(str(self.cost), _COSTS)}")
        for name in ("local_steps", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise FleetError(f"work.{name} is {value!r}; give a whole number, at least 1.")
        if not isinstance(self.num_parameters, int) or self.num_parameters < 0:
            raise FleetError(f"work.num_parameters is {self.num_parameters!r}; give a number.")
        if self.num_parameters and self.cost == "exact":
            raise FleetError(
                "work.num_parameters: exact FLOPs are counted from a model. Set work.model, or "
                "cost = 'paper' for the paper's formula."
            )

    def paper_workload(self, num_parameters: int) -> PaperWorkload:
        """The paper's formula, for the number of parameters given here or that of a model."""
        return PaperWorkload(
            self.num_parameters or num_parameters,
            self.local_steps,
            self.batch_size,
            self.bytes_per_parameter,
        )


@dataclass(frozen=True)
class TargetSettings:
    """The time to aim for, and what the planner may give up for it."""

    rule: Literal["fastest", "deadline", "percentile"] = "fastest"
    seconds: float | None = None
    percentile: float | None = None
    min_ratio: float = 0.01
    may_freeze: bool = False
    may_cut_steps: bool = False

    def target(self) -> Target:
        if self.rule not in _RULES:
            raise FleetError(f"target.rule is {self.rule!r}. {did_you_mean(self.rule, _RULES)}")
        return Target(self.rule, self.percentile if self.rule == "percentile" else self.seconds)


_COSTS = ("exact", "paper")
_RULES = ("fastest", "deadline", "percentile")


def work_settings(values: Mapping[str, Any]) -> WorkSettings:
    given = dict(values)
    _known(given, WorkSettings, "work")
    if "input_shape" in given:
        shape = given["input_shape"]
        if not isinstance(shape, list) or not all(isinstance(n, int) and n > 0 for n in shape):
            raise FleetError(f"work.input_shape is {shape!r}; write it like [3, 32, 32].")
        given["input_shape"] = tuple(shape)
    return WorkSettings(**given)


def target_settings(values: Mapping[str, Any]) -> TargetSettings:
    _known(values, TargetSettings, "target")
    for name in ("seconds", "percentile", "min_ratio"):
        value = values.get(name, 1.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise FleetError(f"target.{name} is {value!r}; give a number.")
    return TargetSettings(**values)


def _known(values: Mapping[str, Any], kind: type[Any], section: str) -> None:
    names = [entry.name for entry in fields(kind)]
    for key in values:
        if key not in names:
            raise FleetError(f"{section}: there is no key {key!r}. {did_you_mean(key, names)}")
