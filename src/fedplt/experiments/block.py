"""The parts of an experiment: blocks of contestants in one setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedplt.configuration import RunConfig, parse_config
from fedplt.experiments.settings import Setting


@dataclass(frozen=True)
class Contestant:
    """A method with its fleet and its sampling. The name is a part of the run's id."""

    name: str
    label: str
    sections: Mapping[str, Any]
    """Sections of the run configuration that override the setting's."""
    layer_ratios: tuple[float, ...] | None = None
    """The allocation of all clients, if it is given."""


@dataclass(frozen=True)
class Block:
    """One pair of data and model in an experiment."""

    experiment: str
    pair: str
    setting: Setting
    contestants: tuple[Contestant, ...]

    def config(self, contestant: Contestant, rounds: int, seed: int) -> RunConfig:
        values: dict[str, Any] = {key: dict(part) for key, part in self.setting.sections.items()}
        for key, part in contestant.sections.items():
            values[key] = {**values.get(key, {}), **part}
        values |= {"name": contestant.name, "seed": seed, "rounds": rounds}
        values["engine"] = {"workers": 1}
        return parse_config(values)

    def run_id(self, contestant: Contestant, seed: int) -> str:
        return f"{self.setting.id}/{contestant.name}-seed{seed}"


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    blocks: Mapping[str, Block]
    """Blocks by pair of data and model."""
