"""Checks of a comparison before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedplt.client import MetricInfo
from fedplt.configuration import RunConfig, flatten
from fedplt.errors import ConfigError, FedpltError, RunError
from fedplt.federation import RunFolder, changed_keys, method_from_config, plan_without_data
from fedplt.planning import Plan

if TYPE_CHECKING:
    from fedplt.comparison.run import Run


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
    if not plans and len(problems) == 1:  # all fail alike: not about the methods
        raise ConfigError(next(iter(problems)))
    lines = [f"{', '.join(labels)} cannot be compared: {why}" for why, labels in problems.items()]
    if plans:
        lines.append(f"The others can: --methods {','.join(plans)}")
    raise ConfigError("\n".join(lines))


def check_folders(runs: Iterable[Run]) -> None:
    """Refuse existing runs of other configurations: their results would be shown as these."""
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
