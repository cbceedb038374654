"""Recorded runs made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from reproduction.catalog import EXPERIMENTS
from reproduction.recorded import Recorded, RecordedRun, Series

PROCESSOR = "AMD EPYC, AVX2, torch 2.13.0"


def fake_run(
    accuracy,
    *,
    up=10e9,
    down=10e9,
    flops=1e12,
    paper_flops=2e12,
    every=1,
    processor=PROCESSOR,
    trained=1.0,
    **more,
) -> RecordedRun:
    """A run with these accuracies, evaluated after every so many rounds."""
    number = every * len(accuracy)
    per_round = {"bytes_up": up, "bytes_down": down, "flops": flops, "paper_flops": paper_flops}
    return RecordedRun(
        id="fake",
        trained=trained,
        processor=processor,
        seconds_per_round=1.0,
        evaluated=tuple(range(every, number + 1, every)),
        accuracy=tuple(accuracy),
        loss=(1.0,) * len(accuracy),
        costs={name: np.full(number, float(value)) for name, value in per_round.items()},
        **more,
    )


def fake_recorded(experiment, pair, runs) -> Recorded:
    """``runs``: RecordedRun by contestant and seed."""
    block = EXPERIMENTS[experiment].blocks[pair]
    labels = {c.name: c.label for c in block.contestants if c.name in runs}
    ids = {c.name: c for c in block.contestants}
    runs = {
        name: {seed: replace(run, id=block.run_id(ids[name], seed)) for seed, run in found.items()}
        for name, found in runs.items()
    }
    return Recorded(experiment, pair, block.setting.id, runs, labels)


def flat(finals, rounds=300, **options):
    """Runs by seed, each with one accuracy all the way."""
    return {
        seed: fake_run([value] * rounds, **options) for seed, value in enumerate(finals, start=1)
    }


def fake_series(rounds: int, end: float) -> Series:
    numbers = tuple(range(1, rounds + 1))
    falling = tuple(1 - (1 - end) * n / rounds for n in numbers)
    layers = {f"fc{i}": tuple(value * i / 4 for value in falling) for i in range(1, 5)}
    return Series(numbers, tuple(1 / n for n in numbers), falling, layers)
