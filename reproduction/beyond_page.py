"""Tables and picture of ``docs/beyond.md``, from the runs that :mod:`reproduction.beyond` made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedplt.comparison import mean_interval
from fedplt.imports import optional_module
from fedplt.report.palette import SERIES
from reproduction.beyond import RESULTS, SEEDS, STUDIES, Runs, Study, load
from reproduction.fine_tuning import FINE_TUNING
from reproduction.pages import replace_generated
from reproduction.tables import seeds_text

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "beyond.md", ROOT / "docs" / "pictures" / "beyond.png"
ALL_STUDIES: dict[str, Study] = {**STUDIES, FINE_TUNING.pair: FINE_TUNING}
HEADER = (
    "", "rate", "last model", "average", "minus FedAvg", "sent a round", "sent to the target",
    "time to the target",
)  # fmt: skip


def target_of(study: Study, runs: Runs, seed: int) -> float:
    """FedAvg's accuracy at half of the rounds, at its best rate."""
    return study.accuracy(study.best_run(runs, "fedavg", seed), study.rounds // 2)


def cost_to(study: Study, target: float, run: Mapping[str, Any], *keys: str) -> float:
    """The cost of the rounds until the accuracy reaches a target; NaN: it does not."""
    numbers = range(1, len(run["score"]) + 1)
    rounds = next((number for number in numbers if study.accuracy(run, number) >= target), 0)
    if not rounds:
        return math.nan
    return sum(sum(_expanded(run[key])[:rounds]) for key in keys)


def table(study: Study, runs: Runs) -> str:
    """All contestants that have runs of the whole length, each at its best rate."""
    fedavg = {seed: study.best_run(runs, "fedavg", seed) for seed in full_seeds(study, runs)}
    rows = [list(HEADER), ["---", *["---:"] * (len(HEADER) - 1)]]
    for name in study.contestants:
        seeds = [seed for seed in full_seeds(study, runs, name) if seed in fedavg]
        if not seeds:
            continue
        found = {seed: study.best_run(runs, name, seed) for seed in seeds}
        differences = [100 * (study.accuracy(found[k]) - study.accuracy(fedavg[k])) for k in seeds]
        targets = {seed: target_of(study, runs, seed) for seed in seeds}
        sent, seconds = (
            [cost_to(study, targets[k], found[k], *keys) for k in seeds]
            for keys in (("bytes_up", "bytes_down"), ("simulated_seconds",))
        )
        each = [found[k]["bytes_up"][-1][1] + found[k]["bytes_down"][-1][1] for k in seeds]
        label = study.label(name) + ("" if set(seeds) == set(fedavg) else _only(seeds))
        of_rate = runs[name][f"{study.best_rate(runs, name):g}"]
        if lost := [int(seed) for seed, run in of_rate.items() if run.get("diverged")]:
            label += f", {seeds_text(lost)} diverged"
        rows.append(
            [
                f"**{label}**" if name == "recommended" else label,
                f"{study.best_rate(runs, name):g}",
                _spread([100 * study.model_accuracy(run["score"]) for run in found.values()]),
                _spread([100 * study.model_accuracy(r["average_score"]) for r in found.values()]),
                "" if name == "fedavg" else _interval(differences),
                f"{fmean(each) / 1e6:.1f} MB",
                _mean_of([value / 1e9 for value in sent], "GB", 4 if fmean(each) < 1e7 else 2),
                _mean_of([value / 3600 for value in seconds], "h"),
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def figure(study: Study, runs: Runs) -> Any:
    """FedAvg, the paper's FedPLT and the recommended one, by rounds and by bytes."""
    pyplot = optional_module("matplotlib.pyplot", "the figure", "'fedplt[pictures]'")
    drawn, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for color, name in zip(SERIES, ("fedavg", "fedplt", "recommended"), strict=False):
        seeds = full_seeds(study, runs, name)
        found = [study.best_run(runs, name, seed) for seed in seeds]
        scores = 100 * np.array([study.shipped(run) for run in found])
        sent = [_expanded(found[0][key]) for key in ("bytes_up", "bytes_down")]
        total = np.cumsum(np.sum(sent, axis=0)) / 1e9
        for axis, x in zip(axes, (np.arange(1, scores.shape[1] + 1), total), strict=True):
            axis.plot(x, scores.mean(axis=0), color=color, label=study.label(name))
            axis.fill_between(x, scores.min(axis=0), scores.max(axis=0), color=color, alpha=0.15)
    axes[0].set(xlabel="round", ylabel="accuracy (%)")
    axes[1].set(xlabel="sent up and down, all clients (GB)", xscale="log")
    floor = min(line.get_ydata()[len(line.get_ydata()) // 10] for line in axes[0].lines)
    axes[0].set_ylim(bottom=floor - 5)
    axes[0].legend(loc="lower right")
    for axis in axes:
        axis.grid(alpha=0.3)
    return drawn


def full_seeds(study: Study, runs: Runs, name: str = "fedavg") -> list[int]:
    """The seeds of a contestant's best rate that have all rounds."""
    try:
        found = runs[name][f"{study.best_rate(runs, name):g}"]
    except KeyError:  # its grid is not complete
        return []
    return [
        seed for seed in SEEDS if len(found.get(str(seed), {}).get("score", ())) >= study.rounds
    ]


def _expanded(pairs: Sequence[Sequence[float]]) -> list[float]:
    return [value for number, value in pairs for _ in range(int(number))]


def _spread(values: Sequence[float]) -> str:
    more = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{more} %"


def _interval(differences: Sequence[float]) -> str:
    """The mean paired difference and its 95 % interval."""
    mean = f"{fmean(differences):+.2f}"
    if len(differences) < 2:
        return mean
    found = mean_interval(differences)
    assert found.low is not None and found.high is not None
    return f"{mean} [{found.low:+.2f}, {found.high:+.2f}]"


def _mean_of(values: Sequence[float], unit: str, digits: int = 2) -> str:
    reached = [value for value in values if not math.isnan(value)]
    if not reached:
        return "not reached"
    if not any(reached):  # without a fleet there is no simulated time
        return ""
    missing = len(values) - len(reached)
    return f"{fmean(reached):.{digits}f} {unit}" + (f" ({missing} not reached)" if missing else "")


def _only(seeds: Sequence[int]) -> str:
    """What a row says that has fewer seeds than FedAvg."""
    return f" ({seeds_text(seeds)} only)"


def _rates(study: Study, runs: Runs) -> str:
    """The learning rates that were tried; rows with others than most are named."""
    others: dict[tuple[float, ...], list[str]] = {}
    for name in study.contestants:
        if (rates := study.rates_of(name)) != study.rates and full_seeds(study, runs, name):
            others.setdefault(rates, []).append(f'"{study.label(name)}"')
    texts = [_listed(study.rates)]
    texts += [f"of {', '.join(labels)}: {_listed(rates)}" for rates, labels in others.items()]
    return "; ".join(texts)


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _part(study: Study, runs: Runs) -> str:
    return (
        f"### {study.title}\n\n{study.rounds} rounds, {seeds_text(full_seeds(study, runs))}; "
        f"learning rates tried: {_rates(study, runs)}.\n\n{table(study, runs)}"
    )


def write_page() -> None:
    """Write the tables into ``docs/beyond.md`` and draw the picture."""
    recorded = {pair: load(RESULTS, study) for pair, study in ALL_STUDIES.items()}
    parts = [
        _part(study, recorded[pair])
        for pair, study in ALL_STUDIES.items()
        if full_seeds(study, recorded[pair])
    ]
    replace_generated(PAGE, "\n\n".join(parts))
    drawn = figure(STUDIES["fashion-fcn"], recorded["fashion-fcn"])
    drawn.savefig(PICTURE, dpi=110, metadata={"Software": None})
