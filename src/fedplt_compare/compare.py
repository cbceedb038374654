"""Run several methods and seeds: same split, same initial weights, same fleet, same rounds.

    <out>/
        LABEL-seedN.toml  one run's configuration
        LABEL-seedN.log   what it printed, if anything
        LABEL-seedN/      one run's folder, as from ``fedplt run``
        comparison.json   the results

Runs are processes with one worker each, spread over the cores; this does not change their bits.
When a comparison is started again, finished runs are not run again and the others continue.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedplt.client import MetricInfo
from fedplt.configuration import (
    ConfigLike,
    RunConfig,
    as_config,
    dump_config,
    flatten,
    parse_config,
)
from fedplt.data import CATALOG, Fetching, fetch_data_set
from fedplt.errors import ConfigError, FedpltError, RunError
from fedplt.federation import (
    History,
    RunFolder,
    changed_keys,
    method_from_config,
    on_device,
    plan_without_data,
    take_lock,
    warn_of_gaps,
)
from fedplt.files import write_text
from fedplt.fleet import available_cores
from fedplt.planning import Plan, paper_flops_of
from fedplt_compare.processes import Processes, beside, terminated_like_interrupted
from fedplt_compare.results import Comparison, MethodRuns, refusals

Rounds = Mapping[tuple[str, int], int]
"""Number of rounds by (label, seed)."""


class Watch:
    """``compare`` calls these methods, one thread at a time; override them to show progress."""

    def on_begin(self, rounds: Rounds, done: Rounds, metric: MetricInfo) -> None:
        """Before anything runs: the rounds of each run, those that are done, the metric."""

    def on_start(self, label: str, seed: int) -> None:
        """When a run starts or continues."""

    def on_round(self, label: str, seed: int, round: int, score: float | None) -> None:
        """After every round of every run; rounds are numbered from 1."""

    def on_end(self, label: str, seed: int, text: str) -> None:
        """When a run has ended: "done", or what went wrong."""


def compare(
    config: ConfigLike,
    methods: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    out: str | Path,
    *,
    target: float | None = None,
    processes: int | None = None,
    fetching: Fetching = nullcontext,
    watch: Watch | None = None,
) -> Comparison:
    """Run every method with every seed on the same data, initial weights and budgets.

    Args:
        config: a configuration, a dictionary of its sections, or the path of a TOML file.
        methods: labels and method settings, ``{"no scaler": {"name": "feddrop", "scaler":
            False}}``; each replaces ``config.method``, the rest is the same for all.
        seeds: one run per method and seed; all different.
        out: the folder that gets one folder per run.
        target: report the cost to reach this score (default: one that most methods reach).
        processes: runs at a time (default: one per core).
        fetching: context manager that displays the progress of downloads.
        watch: gets progress callbacks.

    Folders with runs of another configuration are refused. The result lists runs that failed.
    Ctrl-C and SIGTERM save the running runs and raise KeyboardInterrupt.
    """
    config, out = on_device(as_config(config)), Path(out)
    # Report mistakes before anything runs.
    metric = config.task.task().metric.info
    check_runs(methods, seeds, processes, target, metric)
    variants = {label: {"method": dict(method)} for label, method in methods.items()}
    plans = check_methods({k: variant(config, k, v, seeds[0]) for k, v in variants.items()})
    for label, plan in plans.items():
        warn_of_gaps(plan, f"{label}: ")
    # Seed by seed, longest run first, so that all cores finish at about the same time.
    ordered = sorted(methods, key=lambda label: _work(plans[label]), reverse=True)
    runs = {
        (label, seed): Run(
            run_folder(out, label, seed), variant(config, label, variants[label], seed)
        )
        for seed in seeds
        for label in ordered
    }
    check_folders(runs.values())
    make_folder(out)
    if config.data.name in CATALOG:
        with fetching() as progress:  # a console can show one live display at a time
            fetch_data_set(config.data.name, progress=progress)  # once, not in every process
    with closing(take_lock(out)):
        failed = run_all(runs, processes or available_cores(), watch or Watch())
        found = _read_results(out, methods, seeds, config, failed)
        write_text(out / "comparison.json", json.dumps(found.to_json(target), indent=1))
    return found


def run_all(
    runs: Mapping[tuple[str, int], Run], number: int, watch: Watch, seconds: float = math.inf
) -> dict[tuple[str, int], str]:
    """Do all runs, ``number`` at a time; return the problems of those that failed.

    Runs that have not ended after ``seconds`` are saved and stopped.
    """
    failed: dict[tuple[str, int], str] = {}
    processes, watch_lock = Processes(), threading.Lock()

    def do(label: str, seed: int) -> str:
        def on_round(round: int, score: float | None) -> None:
            with watch_lock:
                watch.on_round(label, seed, round, score)

        run = runs[label, seed]
        if run.is_finished or run.diverged:
            return run.diverged
        try:
            with watch_lock:
                watch.on_start(label, seed)
            write_text(beside(run.folder, ".toml"), dump_config(run.config))
            return processes.run(run.folder, on_round, run.config.engine.timeout_seconds)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # before this thread starts the next run
            raise

    metric = next(iter(runs.values())).config.task.task().metric.info
    rounds = {key: run.config.rounds for key, run in runs.items()}
    watch.on_begin(rounds, {key: run.done for key, run in runs.items()}, metric)
    timer = threading.Timer(min(max(0.0, seconds), threading.TIMEOUT_MAX), processes.stop)
    timer.start()
    with terminated_like_interrupted(), ThreadPoolExecutor(number) as pool:
        try:
            waiting = {pool.submit(do, *key): key for key in runs}
            for future in as_completed(waiting):
                label, seed = waiting[future]
                problem = future.result()
                if problem:
                    failed[label, seed] = problem
                with watch_lock:
                    watch.on_end(label, seed, problem or runs[label, seed].ended())
        except BaseException:  # such as Ctrl-C: running runs save, others do not start
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            raise
        finally:
            timer.cancel()
    return failed


@dataclass(frozen=True)
class Run:
    """One run: its folder and configuration."""

    folder: Path
    config: RunConfig

    @property
    def done(self) -> int:
        """Rounds on disk; :func:`check_folders` checked that they belong to this configuration."""
        if not RunFolder.has_begun(self.folder):
            return 0
        return max((record.round for record in RunFolder.open(self.folder).rounds()), default=0)

    @property
    def diverged(self) -> str:
        """Why the run cannot be continued; empty if it can."""
        path = beside(self.folder, ".diverged")
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    @property
    def is_finished(self) -> bool:
        may_stop = self.config.evaluation.stop_after is not None
        has_result = (self.folder / "result.json").is_file()
        return has_result and (may_stop or self.done >= self.config.rounds)

    def ended(self) -> str:
        """The final message of a run that finished."""
        refused = refusals(RunFolder.open(self.folder).history())
        log = beside(self.folder, ".log")
        output = f"its output is in {log}" if log.is_file() else ""
        return "; ".join(text for text in ("done", refused, output) if text)


def _read_results(
    out: Path,
    methods: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    config: RunConfig,
    failed: Mapping[tuple[str, int], str],
) -> Comparison:
    """Read the results from the folders of the runs."""
    compared, without = {}, {}
    for label, method in methods.items():
        histories = evaluated_histories(out, label, seeds)
        ended = {seed: failed[label, seed] for seed in seeds if (label, seed) in failed}
        for seed in seeds:
            if seed not in histories:
                ended.setdefault(seed, "no round was evaluated; lower evaluation.every.")
        if not histories:
            without[label] = ended
            continue
        plan = RunFolder.open(run_folder(out, label, next(iter(histories)))).plan()
        trained = float(plan.achieved_ratios.mean())
        shipped = {seed: history.shipped for seed, history in histories.items()}
        compared[label] = MethodRuns(dict(method), shipped, trained, ended)
    if not compared:
        lines = [f"{k}, seed {s}: {why}" for k, runs in without.items() for s, why in runs.items()]
        raise RunError("\n".join(["no run has an evaluated round:", *lines]))
    shared = {
        key: value
        for key, value in flatten(config).items()
        if key not in ("seed", "name") and not key.startswith(("engine.", "method."))
    }
    return Comparison(compared, shared, without)


def evaluated_histories(out: Path, label: str, seeds: Iterable[int]) -> dict[int, History]:
    """The histories of the runs that have an evaluated round, by seed."""
    folders = {seed: run_folder(out, label, seed) for seed in seeds}
    begun = {seed: folder for seed, folder in folders.items() if RunFolder.has_begun(folder)}
    found = {seed: RunFolder.open(folder).history() for seed, folder in begun.items()}
    return {seed: history for seed, history in found.items() if history.evaluated}


def _work(plan: Plan) -> float:
    """FLOPs of a sample of clients: enough to order the methods by running time."""
    clients = range(0, plan.num_clients, -(-plan.num_clients // 100))
    return sum(paper_flops_of(plan.assignment(k), 1) for k in clients)


def run_folder(out: Path, label: str, seed: int) -> Path:
    return out / f"{label}-seed{seed}"


def variant(config: RunConfig, label: str, sections: Mapping[str, Any], seed: int) -> RunConfig:
    """The configuration of one run: ``sections`` replace those of ``config``."""
    values = config.model_dump(exclude_none=True, mode="json")
    values |= {"name": label, "seed": seed, **sections}
    values["engine"] = {**values["engine"], "workers": 1}
    return parse_config(values)


def check_runs(methods: Any, seeds: Any, processes: Any, target: Any, metric: MetricInfo) -> None:
    """Check the arguments. Labels and seeds become folder names, so they must be distinct."""
    if not methods or not seeds:
        raise RunError("a comparison needs at least one method and one seed.")
    if not isinstance(methods, Mapping):
        example = {"a label": {"name": "fedplt"}}
        raise ConfigError(f"methods is {methods!r}; give labels and settings: {example}.")
    for label in methods:
        good = isinstance(label, str) and label.strip() and label.isprintable()
        if not good or not re.fullmatch(r"(?!\.)[^/\\]{1,100}", label):
            raise ConfigError(
                f"label {label!r}: a label becomes a folder name: not empty, at most 100 "
                "characters, no slash, no dot at its start."
            )
    whole = all(isinstance(seed, int) for seed in seeds)
    if not whole or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        given = ",".join(map(str, seeds))
        raise ConfigError(f"seeds {given}: give whole numbers of at least 0, all different.")
    if processes is not None and not (isinstance(processes, int) and processes >= 1):
        raise ConfigError(f"processes is {processes!r}; it is a whole number, at least 1.")
    low, high = metric.limits or (-math.inf, math.inf)
    if target is not None and not (isinstance(target, (int, float)) and low <= target <= high):
        where = f"from {low:g} to {high:g}" if metric.limits else "a number"
        raise ConfigError(f"target is {target!r}; a score of {metric.name} is {where}.")


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be made: {error.strerror}. Choose another folder with --out."
        ) from error


def check_methods(configs: Mapping[str, RunConfig]) -> dict[str, Plan]:
    """The plan of every method; the error names the methods that cannot plan this model."""
    for label, config in configs.items():
        try:
            method = method_from_config(config)
        except FedpltError as error:
            raise ConfigError(f"{label}: {error}") from error
        name = config.method["name"]
        home = type(method).__module__
        if home == "__main__" or (":" not in name and not home.startswith("fedplt.")):
            raise ConfigError(
                f"{label}: {name} was added in this process, but each run has its own process. "
                f"Put its class into a file and name it 'my_file:{type(method).__name__}'."
            )
    plans: dict[str, Plan] = {}
    problems: dict[str, list[str]] = {}
    for label, config in configs.items():
        try:
            plans[label] = plan_without_data(config)
        except FedpltError as error:
            problems.setdefault(str(error), []).append(label)
    if not problems:
        return plans
    if not plans and len(problems) == 1:  # all fail for one reason: it is not about the methods
        raise ConfigError(next(iter(problems)))
    lines = [f"{', '.join(labels)} cannot be compared: {why}" for why, labels in problems.items()]
    if plans:
        lines.append(f"The others can: --methods {','.join(plans)}")
    raise ConfigError("\n".join(lines))


def check_folders(runs: Iterable[Run]) -> None:
    """Refuse existing runs of other configurations: their results would be taken for these."""
    problems = []
    for run in runs:
        if not RunFolder.has_begun(run.folder):
            continue
        changed = changed_keys(flatten(RunFolder.open(run.folder).config()), flatten(run.config))
        if run.done > run.config.rounds:
            changed.append(f"rounds is {run.config.rounds}, but {run.done} are done")
        if changed:
            problems.append(f"{run.folder}: {'; '.join(changed)}")
    if problems:
        raise ConfigError(
            "there are runs of another configuration:\n"
            + "\n".join(problems)
            + "\nSet it back, choose another folder with --out, or delete these."
        )
