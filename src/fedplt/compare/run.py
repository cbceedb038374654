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
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from fedplt.compare.results import Comparison, Contestant
from fedplt.data.catalog import CATALOG, get
from fedplt.data.sources import Progress
from fedplt.errors import RunError
from fedplt.federation.config import RunConfig
from fedplt.federation.folder import RunFolder
from fedplt.federation.job import plan_without_data
from fedplt.federation.load_config import dump_config, flatten, parse_config
from fedplt.federation.planning import method_from_config
from fedplt.files import write_text
from fedplt.simulator.engine import available_cores

OnRun = Callable[[str, int, str], None]
"""Told when a run has ended: label, seed, and what became of it."""


def compare(
    config: RunConfig,
    methods: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    out: Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    on_run: OnRun = lambda label, seed, text: None,
) -> Comparison:
    """Run every method with every seed in its own folder under ``out``, and read the results.

    ``methods`` maps labels to method settings: ``{"no scaler": {"name": "feddrop", "scaler":
    False}}``. The rest of the configuration is the same for all.
    """
    if not methods or not seeds:
        raise RunError("a comparison needs at least one method and one seed.")
    configs = {
        (label, seed): _config(config, label, method, seed)
        for seed in seeds
        for label, method in methods.items()
    }
    for label in methods:  # mistakes are said before anything runs
        method_from_config(configs[label, seeds[0]])
        plan_without_data(configs[label, seeds[0]])
    if config.data.name in CATALOG:
        get(config.data.name, progress=progress)  # once, not in every process
    out.mkdir(parents=True, exist_ok=True)
    failed: dict[tuple[str, int], str] = {}
    running: set[subprocess.Popen[str]] = set()
    with ThreadPoolExecutor(processes or available_cores()) as pool:
        waiting = {
            pool.submit(_run, out / f"{label}-seed{seed}", one, running): (label, seed)
            for (label, seed), one in configs.items()
        }
        try:
            for future in as_completed(waiting):
                label, seed = waiting[future]
                problem = future.result()
                if problem:
                    failed[label, seed] = problem
                on_run(label, seed, problem or "done")
        except BaseException:  # Ctrl-C above all: what runs saves itself, the rest never starts
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
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
    contestants = {}
    for label, method in methods.items():
        folders = {seed: out / f"{label}-seed{seed}" for seed in seeds}
        histories = {
            seed: RunFolder.open(folder).history()
            for seed, folder in folders.items()
            if (folder / "config.toml").is_file()
        }
        histories = {seed: history for seed, history in histories.items() if history.evaluated}
        ended = {seed: why for (name, seed), why in failed.items() if name == label}
        if not histories:
            raise RunError(
                f"no run of {label} has an evaluated round: {next(iter(ended.values()))}"
            )
        plan = RunFolder.open(folders[next(iter(histories))]).plan()
        trained = float(plan.achieved_ratios.mean())
        contestants[label] = Contestant(method, histories, trained, ended)
    kept = {k: v for k, v in flatten(config).items() if not k.startswith(("engine.", "method."))}
    return Comparison(contestants, {k: v for k, v in kept.items() if k not in ("seed", "name")})


def _config(config: RunConfig, label: str, method: Mapping[str, Any], seed: int) -> RunConfig:
    values = config.model_dump(exclude_none=True, mode="json")
    values |= {"name": label, "seed": seed, "method": dict(method)}
    values["engine"] = {**values["engine"], "workers": 1}
    return parse_config(values)


def _run(folder: Path, config: RunConfig, running: set[subprocess.Popen[str]]) -> str:
    """Run or continue one run in a process of its own; what went wrong, if anything did."""
    write_text(folder.with_name(folder.name + ".toml"), dump_config(config))
    if (folder / "config.toml").is_file() and _is_finished(folder, config):
        return ""
    command = [sys.executable, "-m", "fedplt.compare.one", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        running.add(process)
        _, said = process.communicate()
        running.discard(process)
    if process.returncode == 130:
        return "stopped; start the comparison again to continue"
    if process.returncode:
        lines = said.strip().splitlines() or [f"exit code {process.returncode}"]
        return lines[0] if process.returncode == 2 else lines[-1]
    return ""


def _is_finished(folder: Path, config: RunConfig) -> bool:
    """A run of this very configuration that has come to its end."""
    run = RunFolder.open(folder)
    if dump_config(run.config()) != dump_config(config) or not (folder / "result.json").is_file():
        return False
    history = run.history()
    return bool(history.rounds) and history.rounds[-1].round == config.rounds
