"""Run the paper's experiments; finished runs are kept, and interrupted ones continue.

<out>/
    fashion-fcn-v1/             a setting
        fedavg-seed1/           a run's folder, as from ``fedplt run``; experiments share runs
        fedavg-seed1.toml, .log, .processor, .diverged
<results>/
    exp1/fashion-fcn/runs.json  the recorded results (``reproduction.recorded``)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from fedplt.data import Fetching, fetch_data_set
from fedplt.errors import RunError
from fedplt.federation import RunFolder, take_lock
from fedplt.fleet import available_cores
from fedplt_compare.compare import Run, Watch, make_folder, run_all
from fedplt_compare.processes import beside
from reproduction.catalog import EXPERIMENTS
from reproduction.recorded import Recorded, RecordedRun
from reproduction.settings import Block, Contestant, Setting

SAVING_SECONDS = 180
"""How long to wait for a run without a parent process to finish its last round."""


@dataclass(frozen=True)
class Place:
    """The folders of runs and results."""

    out: Path
    results: Path

    def runs_file(self, block: Block) -> Path:
        return self.results / block.experiment / block.pair / "runs.json"

    def recorded(self, block: Block) -> Recorded:
        """The runs of a block that are already recorded, of the setting's version of today."""
        path = self.runs_file(block)
        if path.is_file():
            return current(_load(path, path.stat().st_mtime_ns), block)
        return Recorded(block.experiment, block.pair, block.setting.id, {}, {})

    def recorded_run(self, block: Block, contestant: Contestant, seed: int) -> RecordedRun | None:
        """A recorded run, also one that another experiment recorded: they share runs by id."""
        runs = by_id(self.recorded(other) for other in blocks_of(block.setting))
        return runs.get(block.run_id(contestant, seed))

    def folder(self, block: Block, contestant: Contestant, seed: int) -> Path:
        return self.out / block.run_id(contestant, seed)

    def rounds_done(self, block: Block, contestant: Contestant, seed: int) -> int:
        """Rounds done in a run's folder: without one, a longer run starts at its first round."""
        path = self.folder(block, contestant, seed)
        if not RunFolder.has_begun(path):
            return 0
        return max((record.round for record in RunFolder.open(path).rounds()), default=0)

    def is_done(self, block: Block, contestant: Contestant, seed: int, rounds: int) -> bool:
        """Whether a run has this many rounds, or cannot have more because it diverged."""
        run = self.recorded_run(block, contestant, seed)
        if run and (run.diverged or run.rounds >= rounds):
            return True
        folder = self.folder(block, contestant, seed)
        return beside(folder, ".diverged").is_file() or (
            (folder / "result.json").is_file()
            and self.rounds_done(block, contestant, seed) >= rounds
        )


@lru_cache(maxsize=16)
def _load(path: Path, changed: int) -> Recorded:
    """Cached by modification time: a block loads the same file once per run."""
    return Recorded.load(path)


def missing_runs(block: Block, place: Place, seeds: Sequence[int], rounds: int) -> dict[
    tuple[str, int], Run
]:  # fmt: skip
    """Runs to start or continue, seed by seed."""
    return {
        (contestant.name, seed): Run(
            place.folder(block, contestant, seed), block.config(contestant, rounds, seed)
        )
        for seed in seeds
        for contestant in block.contestants
        if not place.is_done(block, contestant, seed, rounds)
    }


def reproduce(
    block: Block,
    place: Place,
    seeds: Sequence[int],
    rounds: int,
    *,
    processes: int | None = None,
    fetching: Fetching = nullcontext,
    watch: Watch | None = None,
) -> dict[tuple[str, int], str]:
    """Do the missing runs of a block and record them; return the problems of failed runs."""
    make_folder(place.out)
    with closing(take_lock(place.out)):
        runs = missing_runs(block, place, seeds, rounds)
        failed: dict[tuple[str, int], str] = {}
        if runs:
            with fetching() as progress:
                fetch_data_set(block.setting.sections["data"]["name"], progress=progress)
            _wait_until_saved(runs.values())
            try:
                failed = run_all(runs, processes or available_cores(), watch or Watch())
            finally:
                record(block, place)
        else:
            record(block, place)
    return {key: why for key, why in failed.items() if not runs[key].diverged}


def _wait_until_saved(runs: Iterable[Run]) -> None:
    """Wait for runs of a killed reproduction: each ends after its current round.

    A run that does not end in time keeps its lock, and the new process of that run reports it.
    """
    deadline = time.monotonic() + SAVING_SECONDS
    for run in runs:
        while run.folder.is_dir() and time.monotonic() < deadline:
            with suppress(RunError), closing(take_lock(run.folder)):
                break
            time.sleep(0.2)


def record(block: Block, place: Place) -> Recorded:
    """Update ``runs.json`` from the run folders; recorded runs without a folder are kept.

    So are those of contestants that ``--methods`` leaves out of this block.
    """
    blocks = blocks_of(block.setting)
    same = [b for b in blocks if (b.experiment, b.pair) == (block.experiment, block.pair)]
    old = place.recorded(same[0] if same else block)
    runs: dict[str, dict[int, RecordedRun]] = {k: dict(v) for k, v in old.runs.items()}
    labels = {c.name: c.label for c in block.contestants}
    for contestant in block.contestants:
        for path in sorted(place.out.glob(block.run_id(contestant, 0)[:-1] + "*")):
            seed = path.name.removeprefix(f"{contestant.name}-seed")
            if not (seed.isdigit() and RunFolder.has_begun(path)):
                continue
            found = _read(block, contestant, int(seed), path)
            known = runs.setdefault(contestant.name, {}).get(int(seed))
            if found and (known is None or _replaces(found, known)):
                runs[contestant.name][int(seed)] = found
    new = Recorded(block.experiment, block.pair, block.setting.id, runs, {**old.labels, **labels})
    if any(new.runs.values()):
        new.save(place.runs_file(block))
    return new


def _replaces(found: RecordedRun, known: RecordedRun) -> bool:
    """Whether a folder's run replaces the recorded one.

    The same run on another kind of processor does not: the block's other runs are paired with the
    recorded one.
    """
    same = found.processor == known.processor
    return found.rounds > known.rounds or (same and found.rounds == known.rounds)


def _read(block: Block, contestant: Contestant, seed: int, path: Path) -> RecordedRun | None:
    """A finished run; None if it has not finished."""
    diverged = beside(path, ".diverged")
    if not (diverged.is_file() or (path / "result.json").is_file()):
        return None
    why = diverged.read_text(encoding="utf-8") if diverged.is_file() else ""
    processors = beside(path, ".processor").read_text(encoding="utf-8").splitlines()
    run = RecordedRun.from_folder(
        block.run_id(contestant, seed), path, " and ".join(processors), why
    )
    return run if run.evaluated or why else None


def seconds_left(
    block: Block, place: Place, seeds: Sequence[int], rounds: int, processes: int
) -> float:
    """Estimated seconds of the missing runs, from recorded rounds or the setting's estimate."""
    recorded = place.recorded(block)
    known = {c.name: recorded.seconds_per_round(c.name) for c in block.contestants}
    measured = [seconds for seconds in known.values() if seconds]
    default = sum(measured) / len(measured) if measured else block.setting.seconds_per_round
    left = 0.0
    for contestant in block.contestants:
        for seed in seeds:
            if not place.is_done(block, contestant, seed, rounds):
                rest = rounds - place.rounds_done(block, contestant, seed)
                left += rest * (known[contestant.name] or default)
    return left / processes


def counts(block: Block, place: Place, seeds: Sequence[int], rounds: int) -> Mapping[str, int]:
    """The number of runs, and of those that are done."""
    pairs = [(contestant, seed) for contestant in block.contestants for seed in seeds]
    return {
        "runs": len(pairs),
        "done": sum(place.is_done(block, c, seed, rounds) for c, seed in pairs),
    }


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

    A shared contestant is shown for the seeds that the block's own contestants have. The block's
    own record is preferred to one as long of another experiment: it may be of another processor.
    """

    def best(contestant: Contestant, seed: int) -> RecordedRun | None:
        own = recorded.runs.get(contestant.name, {}).get(seed)
        shared = runs.get(block.run_id(contestant, seed))
        return own if own and (shared is None or own.rounds >= shared.rounds) else shared

    found = {
        contestant.name: {
            seed: run
            for seed in _seeds(block, recorded, contestant.name)
            if (run := best(contestant, seed))
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
