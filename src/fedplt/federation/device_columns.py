"""The ``[work]`` and ``[target]`` tables of a fleet file: what may be set, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fedplt.errors import FleetError, did_you_mean
from fedplt.fleet.target import Target
from fedplt.fleet.workload import PaperWorkload


@dataclass(frozen=True)
class WorkSettings:
    """What a round's local training is."""

    cost: Literal["exact", "paper"] = "exact"
    """Exact FLOPs of a model, or the paper's formula for a number of parameters."""
    model: str = "fcn"
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
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
            if getattr(self, name) < 1:
                raise FleetError(f"work.{name} is {getattr(self, name)}; give at least 1.")
        if self.num_parameters < 0 or not self.bytes_per_parameter > 0:
            raise FleetError("work.num_parameters and work.bytes_per_parameter are positive.")
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
        return Target(self.rule, self.percentile if self.rule == "percentile" else self.seconds)


_COSTS = ("exact", "paper")
_RULES = ("fastest", "deadline", "percentile")


_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "cost": (str, "'exact' or 'paper'"),
    "model": (str, "a name, such as 'fcn'"),
    "options": (dict, "a table, such as { num_inputs = 3072 }"),
    "shape": (list, "a list, such as [3, 32, 32]"),
    "num_parameters": (int, "a whole number"),
    "bytes_per_parameter": ((int, float), "a number"),
    "local_steps": (int, "a whole number"),
    "batch_size": (int, "a whole number"),
    "rule": (str, "'fastest', 'deadline' or 'percentile'"),
    "seconds": ((int, float), "a number"),
    "percentile": ((int, float), "a number"),
    "min_ratio": ((int, float), "a number"),
    "may_freeze": (bool, "true or false"),
    "may_cut_steps": (bool, "true or false"),
}


def work_settings(values: Mapping[str, Any]) -> WorkSettings:
    given = _checked(values, WorkSettings, "work")
    if "shape" in given:
        shape = given["shape"]
        if not all(type(number) is int and number > 0 for number in shape):
            raise FleetError(f"work.shape is {shape!r}; write it like [3, 32, 32].")
        given["shape"] = tuple(shape)
    return WorkSettings(**given)


def target_settings(values: Mapping[str, Any]) -> TargetSettings:
    settings = TargetSettings(**_checked(values, TargetSettings, "target"))
    if settings.rule not in _RULES:
        hint = did_you_mean(settings.rule, _RULES)
        raise FleetError(f"target.rule is {settings.rule!r}. {hint}")
    for key, rule, allowed in (
        ("seconds", "deadline", "more than 0"),
        ("percentile", "percentile", "from 0 to 100"),
    ):
        value = getattr(settings, key)
        if value is None and settings.rule == rule:
            raise FleetError(f"target.{key} is missing: rule = {rule!r} needs it, {allowed}.")
        if value is not None and settings.rule != rule:
            raise FleetError(
                f"target.{key} is {value}, but target.rule is {settings.rule!r}, which does not "
                f"use it. Set rule = {rule!r}, or leave {key} out."
            )
    if not 0 < settings.min_ratio <= 1:
        raise FleetError(f"target.min_ratio is {settings.min_ratio}; it lies in (0, 1].")
    try:
        settings.target()
    except FleetError as error:
        raise FleetError(f"target: {error}") from error
    return settings


def _checked(values: Mapping[str, Any], kind: type[Any], section: str) -> dict[str, Any]:
    """Unknown keys and values of the wrong kind are refused (true is no number)."""
    names = [entry.name for entry in fields(kind)]
    for key, value in values.items():
        if key not in names:
            raise FleetError(f"{section}: there is no key {key!r}. {did_you_mean(key, names)}")
        wanted, words = _KINDS[key]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise FleetError(f"{section}.{key} is {value!r}; give {words}.")
    return dict(values)
