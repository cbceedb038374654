"""The study behind ``docs/beyond.md``: what rotation, memory, averages and small messages add.

Every contestant gets the same number of learning rates (one seed, few rounds), then all seeds at
its best one. Each run is one process on one core with its own folder, and continues where it
stopped. ``results/beyond/<pair>.json`` has what the page needs (:mod:`reproduction.beyond_page`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import fedplt
from fedplt.errors import DivergedError
from fedplt.federation import History, RunFolder, processor_name
from fedplt.files import write_text
from reproduction.settings import SETTINGS

RESULTS = Path(__file__).parents[1] / "results" / "beyond"

SEEDS = (1, 2, 3)
SMALL = {"messages": {"up": "int8", "down": "int4"}}
SMALLEST = {"messages": {"up": "int8", "down": "int2"}}
ROTATING = {"method": {"name": "fedplt", "rotate_every": 1}}
MEMORY = {"server": {"memory": {"decay": 0.8}}}
NO_OUTLIERS = {"max_medians": 5.0}
FULL = {"method": {"name": "fedavg"}}
PLAIN = {"method": {"name": "fedplt"}}
CONTESTANTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "fedavg": ("FedAvg", FULL),
    "recommended": ("FedPLT, recommended", {**ROTATING, **MEMORY, **SMALL}),
    "fedplt": ("FedPLT, as in the paper", PLAIN),
    "fedavg-small": ("FedAvg, small messages", {**FULL, **SMALL}),
    "memory": ("FedPLT, rotation and memory", {**ROTATING, **MEMORY}),
    "rotation": ("FedPLT, rotation alone", ROTATING),
    "fedplt-small": ("FedPLT, small messages alone", {**PLAIN, **SMALL}),
    "strong": ("FedAvg, the strong clients only", {**PLAIN, "sampling": {"name": "strong"}}),
    "recommended-sound": (
        "FedPLT, recommended, outliers refused",
        {**ROTATING, "server": {**MEMORY["server"], **NO_OUTLIERS}, **SMALL},
    ),
    "fedavg-sound": ("FedAvg, outliers refused", {**FULL, "server": NO_OUTLIERS}),
    "int2": ("FedPLT, recommended, but 2-bit differences", {**ROTATING, **MEMORY, **SMALLEST}),
}
"""Label and sections, in the order in which they run."""
MAIN = ("fedavg", "recommended", "fedplt")

Runs = Mapping[str, Any]
"""Recorded runs by contestant, rate and seed."""


@dataclass(frozen=True)
class Study:
    """One pair of data and model."""

    pair: str
    title: str
    sections: Mapping[str, Any]
    ratio: float
    """Of the middle group; the others train 100 % and 6 %."""
    rates: tuple[float, ...]
    grid_rounds: int
    rounds: int
    last: int = 10
    """Accuracy is the mean of so many last rounds."""

    def rates_of(self, name: str) -> tuple[float, ...]:
        """The learning rates that a contestant tries."""
        return self.rates

    def label(self, name: str) -> str:
        return CONTESTANTS[name][0]

    @property
    def contestants(self) -> Sequence[str]:
        return tuple(CONTESTANTS)

    def config(self, name: str, rate: float, seed: int, rounds: int) -> dict[str, Any]:
        """The configuration of a run, as a dictionary of sections."""
        _, given = CONTESTANTS[name]
        sections = {key: dict(part) for key, part in self.sections.items()}
        is_full = given["method"]["name"] == "fedavg"
        ratios = (1.0, 1.0, 1.0) if is_full else (1.0, self.ratio, 0.06)
        shares = zip((0.1, 0.3, 0.6), ratios, strict=True)
        sections["clients"]["groups"] = [
            {"share": share, "ratio": ratio} for share, ratio in shares
        ]
        sections["training"]["learning_rate"] = rate
        sections["server"] = {"average": {"decay": 0.9, "ship": False}}
        for key, part in given.items():
            sections[key] = {**sections.get(key, {}), **part}
        return {
            **sections,
            "name": f"{name}-{rate:g}",
            "seed": seed,
            "rounds": rounds,
            "fleet": {"devices": "kitchen", "ratios": "groups"},
            "engine": {"workers": 1},
        }

    def run(self, folder: Path, name: str, rate: float, seed: int, rounds: int) -> History:
        """Start, continue or extend a run."""
        if RunFolder.has_begun(folder):
            if (folder / "result.json").exists():
                done = History(RunFolder.open(folder).rounds())
                if len(done.rounds) >= rounds:
                    return done
            return fedplt.resume(folder, changes={"rounds": rounds}, verbose=False)
        return fedplt.run(self.config(name, rate, seed, rounds), folder, verbose=False)

    def best_rate(self, runs: Runs, name: str) -> float:
        """The rate with the best accuracy at the end of the grid's rounds."""

        def score(rate: float) -> float:
            run = runs[name][f"{rate:g}"]["1"]
            return 0.0 if run.get("diverged") else self.accuracy(run, self.grid_rounds)

        return max(self.rates_of(name), key=score)

    def best_run(self, runs: Runs, name: str, seed: int) -> dict[str, Any]:
        found: dict[str, Any] = runs[name][f"{self.best_rate(runs, name):g}"][str(seed)]
        return found

    def model_accuracy(self, scores: Sequence[float], rounds: int | None = None) -> float:
        """The mean of the last rounds, up to a round."""
        return fmean(scores[:rounds][-self.last :])

    def shipped(self, run: Mapping[str, Any], rounds: int | None = None) -> list[float]:
        """The scores, round by round, of the last model or of the average: the better in the end.

        That is what a run with ``server.average.ship = "better"`` ends with.
        """
        both: tuple[list[float], ...] = (run["score"], run["average_score"])
        return max(both, key=lambda scores: self.model_accuracy(scores, rounds))

    def accuracy(self, run: Mapping[str, Any], rounds: int | None = None) -> float:
        """The accuracy of the model that a run ends with."""
        return self.model_accuracy(self.shipped(run, rounds), rounds)


def _study(pair: str, *values: Any) -> Study:
    return Study(pair, SETTINGS[pair].title, SETTINGS[pair].sections, *values)


_CNN = {
    **SETTINGS["cifar-fcn"].sections,
    "model": {"name": "cnn", "options": {"num_channels": 3, "image_size": 32}},
    "training": {"optimizer": "sgd", "batch_size": 64, "local_steps": 8},
}
STUDIES = {
    study.pair: study
    for study in (
        _study("fashion-fcn", 0.29, (0.1, 0.2, 0.4), 50, 100),
        _study("cifar-fcn", 0.23, (0.03, 0.06, 0.12, 0.24), 30, 50),
        Study("cifar-cnn", "CIFAR-10, CNN", _CNN, 0.25, (0.05, 0.1, 0.2), 20, 40),
    )
}


def run_study(study: Study, out: Path, names: Sequence[str] = (), results: Path = RESULTS) -> None:
    """Do all missing runs, of some contestants or of all, and record them."""
    for name, rate, seed, rounds in _wanted(study, names or study.contestants, results):
        folder = out / "beyond" / study.pair / f"{name}-{rate:g}-seed{seed}"
        diverged = False
        try:
            history = study.run(folder, name, rate, seed, rounds)
        except DivergedError:
            history, diverged = History(RunFolder.open(folder).rounds()), True
        _record(results / f"{study.pair}.json", name, rate, seed, history, diverged)


def _wanted(
    study: Study, wanted: Sequence[str], results: Path
) -> Iterator[tuple[str, float, int, int]]:
    """Runs that are not recorded; the best rate of a contestant is known after its grid."""
    for names in (
        [name for name in wanted if name in MAIN],
        [name for name in wanted if name not in MAIN],
    ):
        for name in names:
            for rate in study.rates_of(name):
                if _rounds(results, study, name, rate, 1) < study.grid_rounds:
                    yield name, rate, 1, study.grid_rounds
        for seed in SEEDS:
            for name in names:
                rate = study.best_rate(load(results, study), name)
                if _rounds(results, study, name, rate, seed) < study.rounds:
                    yield name, rate, seed, study.rounds


def _rounds(results: Path, study: Study, name: str, rate: float, seed: int) -> int:
    """Recorded rounds of a run; all of them if it diverged."""
    run = load(results, study).get(name, {}).get(f"{rate:g}", {}).get(str(seed))
    return 0 if not run else study.rounds if run.get("diverged") else len(run["score"])


def load(results: Path, study: Study) -> dict[str, Any]:
    """The recorded runs of a study, by contestant, rate and seed."""
    path = results / f"{study.pair}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _record(
    path: Path, name: str, rate: float, seed: int, history: History, diverged: bool
) -> None:
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rounds = history.rounds
    costs = ("bytes_up", "bytes_down", "flops", "simulated_seconds")
    runs.setdefault(name, {}).setdefault(f"{rate:g}", {})[str(seed)] = {
        "score": [round(record.score or 0.0, 5) for record in rounds],
        "average_score": [round(record.average_score or 0.0, 5) for record in rounds],
        **({"diverged": True} if diverged else {}),
        "processor": processor_name(),
        **{key: _encoded([getattr(record.cost, key) for record in rounds]) for key in costs},
    }
    lines = []
    for contestant, by_rate in runs.items():
        for each, by_seed in by_rate.items():
            for number, run in by_seed.items():
                lines.append((contestant, each, number, json.dumps(run)))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _nested(lines))


def _encoded(values: list[float]) -> list[list[float]]:
    """Run-length encoded as [number of rounds, value]."""
    return [[len(list(same)), value] for value, same in groupby(values)]


def _nested(lines: list[tuple[str, str, str, str]]) -> str:
    """JSON with one run per line."""
    contestants = []
    for name, of_name in groupby(lines, key=lambda line: line[0]):
        rates = []
        for rate, of_rate in groupby(of_name, key=lambda line: line[1]):
            seeds = ",\n".join(f'   "{seed}": {run}' for _, _, seed, run in of_rate)
            rates.append(f'  "{rate}": {{\n{seeds}\n  }}')
        contestants.append(f' "{name}": {{\n' + ",\n".join(rates) + "\n }")
    return "{\n" + ",\n".join(contestants) + "\n}\n"
