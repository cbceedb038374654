"""What can be said about a comparison before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedplt.errors import ConfigError, FedpltError
from fedplt.federation.config import RunConfig
from fedplt.federation.folder import RunFolder, changed_keys
from fedplt.federation.job import plan_without_data
from fedplt.federation.load_config import flatten
from fedplt.federation.planning import method_from_config
from fedplt.plan import Plan


def check_methods(configs: Mapping[str, RunConfig]) -> dict[str, Plan]:
    """Every method must be able to plan for this model and fleet; says which cannot."""
    for label, config in configs.items():
        try:
            method_from_config(config)
        except FedpltError as error:
            raise ConfigError(f"{label}: {error}") from error
    plans: dict[str, Plan] = {}
    problems: dict[str, list[str]] = {}
    for label, config in configs.items():
        try:
            plans[label] = plan_without_data(config)
        except FedpltError as error:
            problems.setdefault(str(error), []).append(label)
    if not problems:
        return plans
    if not plans and len(problems) == 1:  # it is not about the methods
        raise ConfigError(next(iter(problems)))
    lines = [f"{', '.join(labels)} cannot be compared: {why}" for why, labels in problems.items()]
    if plans:
        lines.append(f"The others can: --methods {','.join(plans)}")
    raise ConfigError("\n".join(lines))


def check_folders(configs: Mapping[Path, RunConfig]) -> None:
    """Runs that are there already must be of these configurations: their results are shown."""
    problems = []
    for path, config in configs.items():
        if not (path / "config.toml").is_file():
            continue
        folder = RunFolder.open(path)
        changed = changed_keys(flatten(folder.config()), flatten(config))
        done = max((record.round for record in folder.history().rounds), default=0)
        if done > config.rounds:
            changed.append(f"rounds is {config.rounds}, but {done} are done")
        if changed:
            problems.append(f"{path}: {'; '.join(changed)}")
    if problems:
        raise ConfigError(
            "there are runs of another configuration:\n"
            + "\n".join(problems)
            + "\nSet it back, choose another folder with --out, or delete these."
        )
