"""Runs as stored in ``results/``: small, and sufficient for every table and figure.

    runs.json
        format, experiment, pair, setting
        contestants.NAME.label
        contestants.NAME.seeds.N    one run per line

Costs are per round, run-length encoded as pairs [number of rounds, value]: they rarely change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import RunError
from fedplt.federation import History, RunFolder
from fedplt.files import write_text

FORMAT = 1
COSTS = ("bytes_up", "bytes_down", "flops", "paper_flops")


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


@dataclass(frozen=True)
class Sampled:
    """How a sampler treated the clients, mean over the rounds."""

    variance: float
    """Variance of the sampled sum of n U."""
    variance_ratio: float
    """The same, divided by that of uniform sampling of equal expected cost."""
    probabilities: tuple[float, ...]
    """Probability of every client."""

    @property
    def fairness(self) -> float:
        """Jain's index of the probabilities: 1 if all are equal, 1 / clients if one has all."""
        values = np.asarray(self.probabilities)
        return float(values.sum() ** 2 / (len(values) * (values**2).sum()))

    def to_json(self) -> dict[str, Any]:
        rest = {"variance": self.variance, "variance_ratio": self.variance_ratio}
        return {**rest, "probabilities": list(self.probabilities)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sampled:
        return cls(data["variance"], data["variance_ratio"], tuple(data["probabilities"]))


def sampled_of(history: History) -> Sampled | None:
    """None if clients were not sampled by their norms."""
    keys = ("variance", "variance_ratio", "probabilities")
    found = [r.sampling for r in history.rounds if r.sampling and {*keys} <= r.sampling.keys()]
    if not found:
        return None
    variance, ratio = (float(f"{fmean(s[key] for s in found):.5g}") for key in keys[:2])
    clients = zip(*(sampling["probabilities"] for sampling in found), strict=True)
    return Sampled(variance, ratio, tuple(float(f"{fmean(values):.4g}") for values in clients))


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordedRun:
    """One run: accuracy, loss and costs by round."""

    id: str
    trained: float
    """Fraction of the model that a client trains, mean over the clients."""
    processor: str
    """Kind of processor; several if the run was continued on another one."""
    seconds_per_round: float
    """Median seconds of a round, on one core."""
    evaluated: tuple[int, ...]
    """Numbers of the evaluated rounds, from 1."""
    accuracy: tuple[float, ...]
    loss: tuple[float | None, ...]
    costs: Mapping[str, NDArray[np.float64]]
    """Costs of every round, by name (``COSTS``)."""
    diverged: str = ""
    """Why the run ended early; empty if it did not."""
    refused: int = 0
    """Number of updates refused because they were not finite: local training diverged."""
    test_accuracy: float | None = None
    dynamics: Series = field(default_factory=Series)
    sampled: Sampled | None = None

    @property
    def rounds(self) -> int:
        """Number of rounds that were run."""
        return len(self.costs[COSTS[0]])

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "id": self.id,
            "trained": round(self.trained, 6),
            "processor": self.processor,
            "seconds_per_round": round(self.seconds_per_round, 3),
            "evaluated": list(self.evaluated),
            "accuracy": list(self.accuracy),
            "loss": [None if x is None else float(f"{x:.5g}") for x in self.loss],
            "costs": {name: _runs(self.costs[name]) for name in COSTS},
        }
        if self.diverged:
            values["diverged"] = self.diverged
        if self.refused:
            values["refused"] = self.refused
        if self.test_accuracy is not None:
            values["test_accuracy"] = self.test_accuracy
        if self.dynamics:
            values["dynamics"] = self.dynamics.to_json()
        if self.sampled:
            values["sampled"] = self.sampled.to_json()
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedRun:
        costs = {name: _every(data["costs"][name]) for name in COSTS}
        return cls(
            id=data["id"],
            trained=data["trained"],
            processor=data["processor"],
            seconds_per_round=data["seconds_per_round"],
            evaluated=tuple(data["evaluated"]),
            accuracy=tuple(data["accuracy"]),
            loss=tuple(data["loss"]),
            costs=costs,
            diverged=data.get("diverged", ""),
            refused=data.get("refused", 0),
            test_accuracy=data.get("test_accuracy"),
            dynamics=Series.from_json(data["dynamics"]) if "dynamics" in data else Series(),
            sampled=Sampled.from_json(data["sampled"]) if "sampled" in data else None,
        )

    @classmethod
    def from_folder(cls, id: str, path: Path, processor: str, diverged: str = "") -> RecordedRun:
        """Read a run's folder."""
        folder = RunFolder.open(path)
        history = folder.history()
        seconds = [record.seconds for record in history.rounds]
        return cls(
            id=id,
            trained=float(folder.plan().achieved_ratios.mean()),
            processor=processor,
            seconds_per_round=median(seconds) if seconds else 0.0,
            evaluated=tuple(record.round for record in history.evaluated),
            accuracy=tuple(round(value, 6) for value in history.scores),
            loss=tuple(record.loss for record in history.evaluated),
            costs={
                name: np.array([getattr(r.cost, name) for r in history.rounds], dtype=np.float64)
                for name in COSTS
            },
            diverged=diverged,
            refused=sum(len(record.rejected) for record in history.rounds),
            test_accuracy=history.test_score,
            dynamics=series_of(history),
            sampled=sampled_of(history),
        )


def _runs(values: NDArray[np.float64]) -> list[list[float]]:
    """Run-length encoding: [1, 1, 2] as [[2, 1], [1, 2]]."""
    pairs = [(len(list(group)), value) for value, group in groupby(values.tolist())]
    return [[number, int(value) if value == int(value) else value] for number, value in pairs]


def _every(pairs: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    return np.repeat([value for _, value in pairs], [int(number) for number, _ in pairs])


@dataclass(frozen=True)
class Recorded:
    """The runs of one block, by contestant and seed."""

    experiment: str
    pair: str
    setting: str
    runs: Mapping[str, Mapping[int, RecordedRun]]
    labels: Mapping[str, str]

    def save(self, path: Path) -> None:
        head = {
            "format": FORMAT,
            "experiment": self.experiment,
            "pair": self.pair,
            "setting": self.setting,
        }
        lines = [json.dumps(head)[:-1] + ', "contestants": {']
        names = [name for name in self.labels if self.runs.get(name)]
        for name in names:
            lines.append(f' {json.dumps(name)}: {{"label": {json.dumps(self.labels[name])}, ')
            lines[-1] += '"seeds": {'
            seeds = sorted(self.runs[name])
            for seed in seeds:
                comma = "," if seed != seeds[-1] else ""
                run = json.dumps(self.runs[name][seed].to_json(), separators=(",", ":"))
                lines.append(f'  "{seed}": {run}{comma}')
            lines.append(" }}" + ("," if name != names[-1] else ""))
        write_text(path, "\n".join([*lines, "}}"]) + "\n")

    @classmethod
    def load(cls, path: Path) -> Recorded:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise RunError(f"{path} has format {data['format']}; this version reads {FORMAT}.")
            contestants = data["contestants"]
            return cls(
                data["experiment"],
                data["pair"],
                data["setting"],
                {
                    name: {int(s): RecordedRun.from_json(run) for s, run in entry["seeds"].items()}
                    for name, entry in contestants.items()
                },
                {name: entry["label"] for name, entry in contestants.items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path} cannot be read: {error!r}") from error

    def seconds_per_round(self, name: str) -> float | None:
        """Seconds per round of a contestant in these runs; None if it has none."""
        times = [run.seconds_per_round for run in self.runs.get(name, {}).values()]
        return fmean(times) if times else None
