"""Figures of docs/robust.md: rules of aggregation against bad clients (``make robust``).

Writes every run's accuracy into results/robust, and the tables into the page. A
run that is in the file is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from tools.reliability.attacks import (
    reversed_scaled,
    scaled,
    sign_flipped,
    with_bad,
    with_flipped_labels,
)

from fedplt.configuration import parse_config
from fedplt.data import TensorSamples, TrainingData, load_data_set
from fedplt.engines.simulator import SimulatorEngine
from fedplt.errors import DivergedError
from fedplt.federation import make_job
from fedplt.federation.start import run_job
from fedplt.files import write_text
from fedplt.models import build_model
from reproduction.pages import replace_generated

Figures = dict[str, float | None]
ROOT = Path(__file__).parents[1]
PAGE, FOLDER = ROOT / "docs" / "robust.md", ROOT / "results" / "robust"
NUM_CLIENTS, ROUNDS, SEEDS, LAST = 20, 15, (1, 2, 3), 3
NUM_TRAIN, NUM_VALIDATION = 3000, 1000
FLEETS = {"covered": [1.0] * 10 + [0.5] * 10, "thin": [0.15] * 20}
RULES: dict[str, dict[str, Any]] = {
    "mean": {},
    "clipped-mean": {"aggregation": "clipped-mean"},
    "trimmed-mean": {"aggregation": "trimmed-mean", "trim": 0.34},
    "median": {"aggregation": "median"},
}
CHANGES = {"sign-flipped": sign_flipped, "times 10": scaled, "times -10": reversed_scaled}
ATTACKS = ("none", *CHANGES, "label-flipped")
SHARES = (0.1, 0.3)


@dataclass(frozen=True)
class Case:
    """One run."""

    fleet: str
    rule: str
    attack: str
    share: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.fleet}/{self.rule}/{self.attack}/{self.share}/{self.seed}"


def cases(seed: int) -> Iterator[Case]:
    for fleet in FLEETS:
        for attack in ATTACKS:
            for share in SHARES if attack != "none" else (0.0,):
                for rule in RULES:
                    yield Case(fleet, rule, attack, share, seed)


@cache
def data() -> TrainingData:
    whole = load_data_set("fashion-mnist")

    def first(samples: Any, number: int) -> TensorSamples:
        return TensorSamples(samples.inputs[:number], samples.targets[:number])

    return TrainingData(
        first(whole.train, NUM_TRAIN), first(whole.validation, NUM_VALIDATION), None
    )


def accuracy_of(case: Case) -> float | None:
    """Mean accuracy of the last evaluations; None: the run diverged."""
    config = parse_config(
        {
            "seed": case.seed,
            "rounds": ROUNDS,
            "clients": {"num_clients": NUM_CLIENTS},
            "data": {"alpha": 1.0},
            "model": {"name": "fcn", "options": {"hidden": [64, 32]}},
            "training": {"learning_rate": 0.1, "batch_size": 32},
            "server": RULES[case.rule],
            "engine": {"workers": 1, "check": False},
        }
    )
    model = build_model("fcn", {"hidden": [64, 32]}, case.seed)
    job = make_job(config, model, data(), ratios=FLEETS[case.fleet])
    number = round(case.share * NUM_CLIENTS)
    bad = np.random.default_rng(case.seed).choice(NUM_CLIENTS, number, replace=False).tolist()
    engine: Callable[..., Any] = SimulatorEngine
    if case.attack == "label-flipped":
        job = with_flipped_labels(job, bad)
    elif case.attack != "none":
        engine = with_bad(bad, CHANGES[case.attack])
    try:
        return round(run_job(job, engine=engine).final_score(LAST), 4)
    except DivergedError:
        return None


def measure(seed: int) -> Figures:
    path = FOLDER / f"seed{seed}.json"
    known: Figures = json.loads(path.read_text()) if path.exists() else {}
    torch.set_num_threads(1)
    for case in cases(seed):
        if case.key not in known:
            known[case.key] = accuracy_of(case)
            print(case.key, known[case.key], flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    return known


def recorded() -> Figures:
    figures: Figures = {}
    for path in sorted(FOLDER.glob("seed*.json")):
        figures |= json.loads(path.read_text())
    return figures


def cell(values: list[float | None]) -> str:
    """Mean and spread over the seeds that were run."""
    if not values:
        return "not run"
    known = [100 * value for value in values if value is not None]
    if len(known) < len(values):
        return f"diverged ({len(values) - len(known)} of {len(values)})"
    spread = f" ± {stdev(known):.1f}" if len(known) > 1 else ""
    return f"{fmean(known):.1f}{spread}"


def page_text(figures: Figures) -> str:
    columns = [("none", 0.0), *((attack, share) for attack in ATTACKS[1:] for share in SHARES)]
    header = ["rule", "no bad client", *(f"{a}, {100 * s:.0f} %" for a, s in columns[1:])]
    parts = []
    for fleet, ratios in FLEETS.items():
        rows = []
        for rule in RULES:
            cells = [
                [
                    figures[key]
                    for seed in SEEDS
                    if (key := Case(fleet, rule, attack, share, seed).key) in figures
                ]
                for attack, share in columns
            ]
            rows.append([f"`{rule}`", *map(cell, cells)])
        few = sum(ratios)
        title = f"**{fleet}**: a sub-layer is trained by about {few:g} of {NUM_CLIENTS} clients"
        lines = [f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows]]
        parts += [title, "\n".join(lines)]
    about = (
        f"Accuracy in % after {ROUNDS} rounds of FedPLT, mean ± standard deviation over the seeds "
        f"({_seeds_text(figures)}): {NUM_TRAIN:,} images of Fashion-MNIST, {NUM_CLIENTS} clients, "
        f"Dirichlet 1.0, a network of 784-64-32-10, "
        f"`trim = {RULES['trimmed-mean']['trim']}`, `clip = 1.0`."
    )
    return "\n\n".join([about, *parts])


def _seeds_text(figures: Figures) -> str:
    numbers = Counter(key.rpartition("/")[2] for key in figures)
    if all(numbers[str(seed)] == len(list(cases(seed))) for seed in SEEDS):
        return f"{len(SEEDS)} of them"
    return ", ".join(f"seed {seed}: {number} runs" for seed, number in sorted(numbers.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="only measure this seed, and write no page")
    parser.add_argument("--page", action="store_true", help="only write the page")
    asked = parser.parse_args()
    for seed in SEEDS if asked.seed is None else [asked.seed]:
        if not asked.page:
            measure(seed)
    if asked.seed is None:
        replace_generated(PAGE, page_text(recorded()))


if __name__ == "__main__":
    main()
