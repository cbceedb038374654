"""Run several methods and seeds: same split, same initial weights, same fleet, same rounds.

    <out>/
        LABEL-seedN.toml  one run's configuration
        LABEL-seedN/      one run's folder, as of ``fedplt run``
        comparison.json   what was found

Runs are spread over the cores, one worker each: it changes no bit, and wastes nothing on waiting.
Started again, finished runs are left, and others continue.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from fedplt.compare.checks import check_folders, check_methods
from fedplt.compare.processes import OnRound, Processes, terminated_like_interrupted
from fedplt.compare.results import Comparison, Contestant
from fedplt.cost import paper_flops_of
from fedplt.data.catalog import CATALOG, get
from fedplt.data.sources import Progress
from fedplt.errors import RunError
from fedplt.federation.config import RunConfig
from fedplt.federation.folder import RunFolder
from fedplt.federation.load_config import dump_config, flatten, parse_config
from fedplt.files import write_text
from fedplt.plan import Plan
from fedplt.simulator.engine import available_cores


class Watch:
    """Told how a comparison goes, by one thread at a time; this one keeps it to itself."""

    def on_round(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        """After every round of every run; rounds are numbered from 1."""

    def on_run(self, label: str, seed: int, text: str) -> None:
        """When a run has ended: "done", or what went wrong."""


def compare(
    config: RunConfig,
    methods: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    out: Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Comparison:
    """Run every method with every seed in its own folder under ``out``, and read the results.

    ``methods`` maps labels to method settings: ``{"no scaler": {"name": "feddrop", "scaler":
    False}}``, in place of ``config.method``. The rest of the configuration is the same for all.

    Folders with runs of another configuration are refused. Runs that fail are told in the result;
    Ctrl-C and SIGTERM save what runs and raise KeyboardInterrupt.
    """
    if not methods or not seeds:
        raise RunError("a comparison needs at least one method and one seed.")
    # Mistakes are said before anything runs.
    plans = check_methods({k: _config(config, k, m, seeds[0]) for k, m in methods.items()})
    # Seed after seed, each from its longest run to its shortest: the cores end at about one time.
    ordered = sorted(methods, key=lambda label: _work(plans[label]), reverse=True)
    configs = {
        (label, seed): _config(config, label, methods[label], seed)
        for seed in seeds
        for label in ordered
    }
    check_folders({_folder(out, *key): one for key, one in configs.items()})
    if config.data.name in CATALOG:
        get(config.data.name, progress=progress)  # once, not in every process
    out.mkdir(parents=True, exist_ok=True)
    failed: dict[tuple[str, int], str] = {}
    watch, telling = watch or Watch(), threading.Lock()

    def run(label: str, seed: int) -> str:
        def on_round(round: int, accuracy: float | None) -> None:
            with telling:
                watch.on_round(label, seed, round, accuracy)

        folder = _folder(out, label, seed)
        return _run(folder, configs[label, seed], processes_of_runs, on_round)

    processes_of_runs = Processes()
    workers = ThreadPoolExecutor(processes or available_cores())
    with terminated_like_interrupted(), workers as pool:
        try:
            waiting = {pool.submit(run, *key): key for key in configs}
            for future in as_completed(waiting):
                label, seed = waiting[future]
                problem = future.result()
                if problem:
                    failed[label, seed] = problem
                with telling:
                    watch.on_run(label, seed, problem or "done")
        except BaseException:  # Ctrl-C above all: what runs saves itself, the rest never starts
            pool.shutdown(wait=False, cancel_futures=True)
            processes_of_runs.stop()
            raise
    comparison = read(out, {label: dict(m) for label, m in methods.items()}, seeds, config, failed)
    write_text(out / "comparison.json", json.dumps(comparison.to_json(), indent=1))
    return comparison


def read(
    out: Path,
    methods: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    config: RunConfig,
    failed: Mapping[tuple[str, int], str] | None = None,
) -> Comparison:
    """The comparison from the folders of its runs."""
    failed = failed or {}
    contestants, without = {}, {}
    for label, method in methods.items():
        folders = {seed: _folder(out, label, seed) for seed in seeds}
        histories = {
            seed: RunFolder.open(folder).history()
            for seed, folder in folders.items()
            if (folder / "config.toml").is_file()
        }
        histories = {seed: history for seed, history in histories.items() if history.evaluated}
        ended = {seed: failed[label, seed] for seed in seeds if (label, seed) in failed}
        for seed in seeds:
            if seed not in histories:
                ended.setdefault(seed, "no round was evaluated; evaluation.every is how often.")
        if not histories:
            without[label] = ended
            continue
        plan = RunFolder.open(folders[next(iter(histories))]).plan()
        trained = float(plan.achieved_ratios.mean())
        contestants[label] = Contestant(method, histories, trained, ended)
    if not contestants:
        raise RunError(
            "no run has an evaluated round:\n"
            + "\n".join(
                f"{k}, seed {s}: {w}" for k, runs in without.items() for s, w in runs.items()
            )
        )
    kept = {k: v for k, v in flatten(config).items() if not k.startswith(("engine.", "method."))}
    kept = {k: v for k, v in kept.items() if k not in ("seed", "name")}
    return Comparison(contestants, kept, without)


def _work(plan: Plan) -> float:
    """FLOPs of some clients, from the first to the last; enough to put methods in order."""
    clients = range(0, plan.num_clients, -(-plan.num_clients // 100))
    return sum(paper_flops_of(plan.client(k), 1) for k in clients)


def _folder(out: Path, label: str, seed: int) -> Path:
    return out / f"{label}-seed{seed}"


def _config(config: RunConfig, label: str, method: Mapping[str, Any], seed: int) -> RunConfig:
    values = config.model_dump(exclude_none=True, mode="json")
    values |= {"name": label, "seed": seed, "method": dict(method)}
    values["engine"] = {**values["engine"], "workers": 1}
    return parse_config(values)


def _run(folder: Path, config: RunConfig, processes: Processes, on_round: OnRound) -> str:
    """Run or continue one run in a process of its own; what went wrong, if anything did."""
    if (folder / "config.toml").is_file() and _is_finished(folder, config):
        return ""
    write_text(folder.with_name(folder.name + ".toml"), dump_config(config))
    return processes.run(folder, on_round)


def _is_finished(folder: Path, config: RunConfig) -> bool:
    """A run (of this configuration: that was checked) that has come to its end."""
    if not (folder / "result.json").is_file():
        return False
    history = RunFolder.open(folder).history()
    return bool(history.rounds) and history.rounds[-1].round == config.rounds
