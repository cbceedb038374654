"""The study behind ``docs/beyond.md``: what rotation, memory, averages and small messages add.

    python -m reproduction beyond

Every contestant gets the same grid of learning rates (one seed, few rounds), then three seeds at
its best one. Each run is one process on one core, a folder of its own, and continues where it
stopped. ``results/beyond/<pair>.json`` has what the page needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import fedplt
from fedplt.federation import History, RunFolder
from fedplt.files import write_text
from reproduction.settings import SETTINGS

LAST = 10
"""Accuracy is the mean of so many last rounds."""
SEEDS = (1, 2, 3)
SMALL = {"messages": {"up": "int8", "down": "int2"}}
ROTATING = {"method": {"name": "fedplt", "rotate_every": 1}}
MEMORY = {"server": {"memory": {"decay": 0.9}}}
FULL_METHOD = {"method": {"name": "fedavg"}}
CONTESTANTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "fedavg": ("FedAvg", FULL_METHOD),
    "recommended": ("FedPLT, recommended", {**ROTATING, **MEMORY, **SMALL}),
    "fedplt": ("FedPLT, as in the paper", {"method": {"name": "fedplt"}}),
    "fedavg-small": ("FedAvg, small messages", {**FULL_METHOD, **SMALL}),
    "memory": ("FedPLT, rotation and memory", {**ROTATING, **MEMORY}),
    "rotation": ("FedPLT, rotation alone", ROTATING),
    "fedplt-small": ("FedPLT, small messages alone", {"method": {"name": "fedplt"}, **SMALL}),
}
"""In the order in which they are run."""
MAIN = ("fedavg", "recommended", "fedplt")


@dataclass(frozen=True)
class Study:
    """One pair of data and model."""

    pair: str
    ratio: float
    """Of the middle group; the others train 100 % and 6 %."""
    rates: tuple[float, ...]
    grid_rounds: int
    rounds: int


STUDIES = {
    study.pair: study
    for study in (
        Study("fashion-fcn", 0.29, (0.05, 0.1, 0.2), 50, 100),
        Study("cifar-fcn", 0.23, (0.015, 0.03, 0.06), 30, 50),
    )
}


def config_of(study: Study, name: str, rate: float, seed: int, rounds: int) -> dict[str, Any]:
    """The configuration of a run, as a dictionary of sections."""
    _, given = CONTESTANTS[name]
    sections = {key: dict(part) for key, part in SETTINGS[study.pair].sections.items()}
    is_full = given["method"]["name"] == "fedavg"
    ratios = (1.0, 1.0, 1.0) if is_full else (1.0, study.ratio, 0.06)
    shares = zip((0.1, 0.3, 0.6), ratios, strict=True)
    sections["clients"]["groups"] = [{"share": share, "ratio": ratio} for share, ratio in shares]
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


def run_study(study: Study, out: Path, results: Path) -> None:
    """Do all missing runs and record them."""
    for name, rate, seed, rounds in _wanted(study, results):
        folder = out / "beyond" / study.pair / f"{name}-{rate:g}-seed{seed}"
        history = _run(study, folder, name, rate, seed, rounds)
        _record(results / f"{study.pair}.json", name, rate, seed, history)


def _wanted(study: Study, results: Path) -> Iterator[tuple[str, float, int, int]]:
    """Runs that are not recorded; the best rate of a contestant is known after its grid."""
    others = tuple(name for name in CONTESTANTS if name not in MAIN)
    for names in (MAIN, others):
        for name in names:
            for rate in study.rates:
                if _rounds(results, study, name, rate, 1) < study.grid_rounds:
                    yield name, rate, 1, study.grid_rounds
        for seed in SEEDS:
            for name in names:
                rate = best_rate(study, load(results, study), name)
                if _rounds(results, study, name, rate, seed) < study.rounds:
                    yield name, rate, seed, study.rounds


def _rounds(results: Path, study: Study, name: str, rate: float, seed: int) -> int:
    run = load(results, study).get(name, {}).get(f"{rate:g}", {}).get(str(seed))
    return len(run["score"]) if run else 0


def load(results: Path, study: Study) -> dict[str, Any]:
    """The recorded runs of a study, by contestant, rate and seed."""
    path = results / f"{study.pair}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def best_rate(study: Study, runs: Mapping[str, Any], name: str) -> float:
    """The rate with the best accuracy at the end of the grid's rounds."""

    def score(rate: float) -> float:
        scores = runs[name][f"{rate:g}"]["1"]["score"][: study.grid_rounds]
        return fmean(scores[-LAST:])

    return max(study.rates, key=score)


def _run(study: Study, folder: Path, name: str, rate: float, seed: int, rounds: int) -> History:
    if RunFolder.has_begun(folder):
        if (folder / "result.json").exists():
            done = fedplt.History(RunFolder.open(folder).rounds())
            if len(done.rounds) >= rounds:
                return done
        return fedplt.resume(folder, changes={"rounds": rounds}, verbose=False)
    return fedplt.run(config_of(study, name, rate, seed, rounds), folder, verbose=False)


def _record(path: Path, name: str, rate: float, seed: int, history: History) -> None:
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rounds = history.rounds
    costs = ("bytes_up", "bytes_down", "flops", "simulated_seconds")
    runs.setdefault(name, {}).setdefault(f"{rate:g}", {})[str(seed)] = {
        "score": [round(record.score or 0.0, 5) for record in rounds],
        "average_score": [round(record.average_score or 0.0, 5) for record in rounds],
        **{key: _runs([getattr(record.cost, key) for record in rounds]) for key in costs},
    }
    lines = []
    for contestant, by_rate in runs.items():
        for each, by_seed in by_rate.items():
            for number, run in by_seed.items():
                lines.append((contestant, each, number, json.dumps(run)))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _nested(lines))


def _runs(values: list[float]) -> list[list[float]]:
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


if __name__ == "__main__":
    import sys

    for pair in sys.argv[3:] or STUDIES:
        run_study(STUDIES[pair], Path(sys.argv[1]), Path(sys.argv[2]))
