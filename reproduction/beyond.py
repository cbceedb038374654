"""The study behind ``docs/beyond.md``: what rotation, memory, averages and small messages add.

    python -m reproduction beyond

Every contestant gets the same grid of learning rates (one seed, few rounds), then three seeds at
its best one. Each run is one process on one core, a folder of its own, and continues where it
stopped. ``results/beyond/<pair>.json`` has what the page needs.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

import fedplt
from fedplt.comparison import mean_interval
from fedplt.errors import DivergedError
from fedplt.federation import History, RunFolder
from fedplt.files import write_text
from fedplt.imports import optional_module
from fedplt.report.palette import SERIES
from reproduction.pages import replace_generated
from reproduction.settings import SETTINGS

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "beyond", ROOT / "docs" / "beyond.md"
PICTURE = ROOT / "docs" / "pictures" / "beyond.png"

LAST = 10
"""Accuracy is the mean of so many last rounds."""
SEEDS = (1, 2, 3)
SMALL = {"messages": {"up": "int8", "down": "int4"}}
SMALLEST = {"messages": {"up": "int8", "down": "int2"}}
ROTATING = {"method": {"name": "fedplt", "rotate_every": 1}}
MEMORY = {"server": {"memory": {"decay": 0.8}}}
FULL_METHOD = {"method": {"name": "fedavg"}}
CONTESTANTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "fedavg": ("FedAvg", FULL_METHOD),
    "recommended": ("FedPLT, recommended", {**ROTATING, **MEMORY, **SMALL}),
    "fedplt": ("FedPLT, as in the paper", {"method": {"name": "fedplt"}}),
    "fedavg-small": ("FedAvg, small messages", {**FULL_METHOD, **SMALL}),
    "memory": ("FedPLT, rotation and memory", {**ROTATING, **MEMORY}),
    "rotation": ("FedPLT, rotation alone", ROTATING),
    "fedplt-small": ("FedPLT, small messages alone", {"method": {"name": "fedplt"}, **SMALL}),
    "int2": ("FedPLT, recommended, but 2-bit differences", {**ROTATING, **MEMORY, **SMALLEST}),
}
"""In the order in which they are run."""
AVERAGED = ("recommended", "int2")
"""Contestants that end with the average of their models."""
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
        Study("fashion-fcn", 0.29, (0.1, 0.2, 0.4), 50, 100),
        Study("cifar-fcn", 0.23, (0.03, 0.06, 0.12), 30, 50),
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
        diverged = False
        try:
            history = _run(study, folder, name, rate, seed, rounds)
        except DivergedError:
            history, diverged = History(RunFolder.open(folder).rounds()), True
        _record(results / f"{study.pair}.json", name, rate, seed, history, diverged)


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
    """Recorded rounds of a run; all of them if it diverged."""
    run = load(results, study).get(name, {}).get(f"{rate:g}", {}).get(str(seed))
    return 0 if not run else study.rounds if run.get("diverged") else len(run["score"])


def load(results: Path, study: Study) -> dict[str, Any]:
    """The recorded runs of a study, by contestant, rate and seed."""
    path = results / f"{study.pair}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def best_rate(study: Study, runs: Mapping[str, Any], name: str) -> float:
    """The rate with the best accuracy at the end of the grid's rounds."""

    def score(rate: float) -> float:
        if runs[name][f"{rate:g}"]["1"].get("diverged"):
            return 0.0
        return _accuracy(shipped(name, runs[name][f"{rate:g}"]["1"])[: study.grid_rounds])

    return max(study.rates, key=score)


def _run(study: Study, folder: Path, name: str, rate: float, seed: int, rounds: int) -> History:
    if RunFolder.has_begun(folder):
        if (folder / "result.json").exists():
            done = fedplt.History(RunFolder.open(folder).rounds())
            if len(done.rounds) >= rounds:
                return done
        return fedplt.resume(folder, changes={"rounds": rounds}, verbose=False)
    return fedplt.run(config_of(study, name, rate, seed, rounds), folder, verbose=False)


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


def target_of(study: Study, runs: Mapping[str, Any], seed: int) -> float:
    """FedAvg's accuracy at half of the rounds, at its best rate."""
    run = best_run(study, runs, "fedavg", seed)
    return _accuracy(run["score"][: study.rounds // 2])


def best_run(study: Study, runs: Mapping[str, Any], name: str, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = runs[name][f"{best_rate(study, runs, name):g}"][str(seed)]
    return found


def shipped(name: str, run: Mapping[str, Any]) -> list[float]:
    """The accuracy, round by round, of the model that a contestant ends with."""
    found: list[float] = run["average_score" if name in AVERAGED else "score"]
    return found


def cost_to(target: float, scores: Sequence[float], run: Mapping[str, Any], *keys: str) -> float:
    """What was spent until the mean of ten rounds reached a target; NaN: it did not."""
    rounds = next((n for n in range(1, len(scores) + 1) if _accuracy(scores[:n]) >= target), 0)
    if not rounds:
        return math.nan
    return sum(sum(_expanded(run[key])[:rounds]) for key in keys)


def table(study: Study, runs: Mapping[str, Any]) -> str:
    """All contestants that have runs of the whole length, each at its best rate."""
    fedavg = {seed: best_run(study, runs, "fedavg", seed) for seed in _seeds(study, runs, "fedavg")}
    rows = [
        ["", "rate", "model", "average", "minus FedAvg", "sent a round", "sent to the target",
         "time to the target"],
        ["---", *["---:"] * 7],
    ]  # fmt: skip
    for name, (label, _) in CONTESTANTS.items():
        seeds = [seed for seed in _seeds(study, runs, name) if seed in fedavg]
        if not seeds:
            continue
        found = {seed: best_run(study, runs, name, seed) for seed in seeds}
        pairs = [
            100 * (_accuracy(shipped(name, found[k])) - _accuracy(fedavg[k]["score"]))
            for k in seeds
        ]
        targets = {seed: target_of(study, runs, seed) for seed in seeds}
        sent, seconds = (
            [cost_to(targets[k], shipped(name, found[k]), found[k], *keys) for k in seeds]
            for keys in (("bytes_up", "bytes_down"), ("simulated_seconds",))
        )
        each = [found[k]["bytes_up"][-1][1] + found[k]["bytes_down"][-1][1] for k in seeds]
        rows.append(
            [
                f"**{label}**" if name == "recommended" else label,
                f"{best_rate(study, runs, name):g}",
                _spread([100 * _accuracy(run["score"]) for run in found.values()]),
                _spread([100 * _accuracy(run["average_score"]) for run in found.values()]),
                "" if name == "fedavg" else _interval(pairs),
                f"{fmean(each) / 1e6:.1f} MB",
                _mean_of([value / 1e9 for value in sent], "GB"),
                _mean_of([value / 3600 for value in seconds], "h"),
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def figure(study: Study, runs: Mapping[str, Any]) -> Any:
    """FedAvg, the paper's FedPLT and the recommended one, by rounds and by bytes."""
    pyplot = optional_module("matplotlib.pyplot", "the figure", "'fedplt[pictures]'")
    drawn, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for color, name in zip(SERIES, ("fedavg", "fedplt", "recommended"), strict=False):
        seeds = _seeds(study, runs, name)
        found = [best_run(study, runs, name, seed) for seed in seeds]
        scores = 100 * np.array([shipped(name, run) for run in found])
        sent = [_expanded(found[0][key]) for key in ("bytes_up", "bytes_down")]
        total = np.cumsum(np.sum(sent, axis=0)) / 1e9
        for axis, x in zip(axes, (np.arange(1, scores.shape[1] + 1), total), strict=True):
            axis.plot(x, scores.mean(axis=0), color=color, label=CONTESTANTS[name][0])
            axis.fill_between(x, scores.min(axis=0), scores.max(axis=0), color=color, alpha=0.15)
    axes[0].set(xlabel="round", ylabel="accuracy (%)")
    axes[1].set(xlabel="sent up and down, all clients (GB)", xscale="log")
    floor = min(line.get_ydata()[len(line.get_ydata()) // 10] for line in axes[0].lines)
    axes[0].set_ylim(bottom=floor - 5)
    axes[0].legend(loc="lower right")
    for axis in axes:
        axis.grid(alpha=0.3)
    return drawn


def _seeds(study: Study, runs: Mapping[str, Any], name: str) -> list[int]:
    """The seeds of a contestant's best rate that have all rounds."""
    try:
        found = runs[name][f"{best_rate(study, runs, name):g}"]
    except KeyError:  # its grid is not complete
        return []
    return [
        seed for seed in SEEDS if len(found.get(str(seed), {}).get("score", ())) >= study.rounds
    ]


def _accuracy(scores: Sequence[float]) -> float:
    return fmean(scores[-LAST:])


def _expanded(pairs: Sequence[Sequence[float]]) -> list[float]:
    return [value for number, value in pairs for _ in range(int(number))]


def _spread(values: Sequence[float]) -> str:
    more = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{more} %"


def _interval(differences: Sequence[float]) -> str:
    """The mean paired difference and its 95 % interval."""
    mean = f"{fmean(differences):+.2f}"
    if len(differences) < 2:
        return f"{mean} (one seed)"
    found = mean_interval(differences)
    assert found.low is not None and found.high is not None
    return f"{mean} [{found.low:+.2f}, {found.high:+.2f}]"


def _mean_of(values: Sequence[float], unit: str) -> str:
    reached = [value for value in values if not math.isnan(value)]
    if not reached:
        return "not reached"
    missing = len(values) - len(reached)
    return f"{fmean(reached):.2f} {unit}" + (f" ({missing} not reached)" if missing else "")


def write_page() -> None:
    """Write the tables into ``docs/beyond.md`` and draw the picture."""
    parts = []
    for study in STUDIES.values():
        runs = load(RESULTS, study)
        if not runs or not _seeds(study, runs, "fedavg"):
            continue
        seeds = ", ".join(map(str, _seeds(study, runs, "recommended")))
        parts.append(
            f"### {SETTINGS[study.pair].title}\n\n{study.rounds} rounds, seeds {seeds}; learning "
            f"rates tried: {', '.join(f'{rate:g}' for rate in study.rates)}.\n\n"
            f"{table(study, runs)}"
        )
    replace_generated(PAGE, "\n\n".join(parts))
    study = STUDIES["fashion-fcn"]
    drawn = figure(study, load(RESULTS, study))
    drawn.savefig(PICTURE, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if out is not None:
        for pair in sys.argv[2:] or STUDIES:
            run_study(STUDIES[pair], out, RESULTS)
    write_page()
