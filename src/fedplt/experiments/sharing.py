"""Experiments share runs: a run is found by its id, whichever experiment recorded it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fedplt.experiments.block import Block
from fedplt.experiments.catalog import EXPERIMENTS
from fedplt.experiments.recorded import Recorded, RecordedRun
from fedplt.experiments.settings import Setting


def blocks_of(setting: Setting) -> list[Block]:
    """The blocks of all experiments in this setting: they may share runs."""
    blocks = (block for experiment in EXPERIMENTS.values() for block in experiment.blocks.values())
    return [block for block in blocks if block.setting.id == setting.id]


def current(recorded: Recorded, block: Block) -> Recorded:
    """Without runs of another version of the setting, or of contestants that are no more."""
    known = {contestant.name: contestant for contestant in block.contestants}
    runs = {
        name: {
            seed: run for seed, run in found.items() if run.id == block.run_id(known[name], seed)
        }
        for name, found in recorded.runs.items()
        if name in known
    }
    return replace(recorded, runs=runs)


def by_id(results: Iterable[Recorded]) -> dict[str, RecordedRun]:
    """All runs by id; of two records of one run, the longer."""
    found: dict[str, RecordedRun] = {}
    for recorded in results:
        for runs in recorded.runs.values():
            for run in runs.values():
                if run.id not in found or run.rounds > found[run.id].rounds:
                    found[run.id] = run
    return found


def with_shared(block: Block, recorded: Recorded, runs: Mapping[str, RecordedRun]) -> Recorded:
    """Every run of this block that any experiment has recorded.

    A shared contestant is shown for the seeds that the block's own contestants have.
    """
    found = {
        contestant.name: {
            seed: runs[id]
            for seed in _seeds(block, recorded, contestant.name)
            if (id := block.run_id(contestant, seed)) in runs
        }
        for contestant in block.contestants
    }
    labels = {c.name: c.label for c in block.contestants if found[c.name]}
    return replace(recorded, runs=found, labels={**labels, **recorded.labels})


def _seeds(block: Block, recorded: Recorded, name: str) -> list[int]:
    others = {seed for other, runs in recorded.runs.items() if other != name for seed in runs}
    if others and _is_shared(block, name):
        return sorted(others)
    return sorted(others | set(recorded.runs.get(name, {})))


def _is_shared(block: Block, name: str) -> bool:
    """Whether another experiment has this contestant in the same setting."""
    return any(
        other.experiment != block.experiment
        and name in {contestant.name for contestant in other.contestants}
        for other in blocks_of(block.setting)
    )
