"""Read the runs of a page from their folders, without importing users' code."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from fedplt.client import MetricInfo
from fedplt.configuration import RunConfig, flatten
from fedplt.errors import DamagedError, FedpltError, RunError
from fedplt.federation import (
    DeviceTimes,
    History,
    RoundRecord,
    RunFolder,
    one_metric,
    read_devices,
    read_sessions,
)
from fedplt.planning import Plan

Note = TypeVar("Note")


@dataclass(frozen=True)
class ShownRun:
    """One run; everything except the history may be missing."""

    name: str
    seed: int
    history: History
    rounds: int
    """Configured number of rounds."""
    config: RunConfig | None = None
    plan: Plan | None = None
    plan_problem: str = ""
    """Why the plan is not shown."""
    devices: Sequence[DeviceTimes] = ()
    sessions: Sequence[Mapping[str, Any]] = ()
    has_result: bool = False
    """Whether ``result.json`` was written."""

    @property
    def rounds_done(self) -> int:
        return self.history.rounds[-1].round if self.history.rounds else 0

    @property
    def is_finished(self) -> bool:
        return self.has_result or (self.config is None and self.rounds_done >= self.rounds)

    def client_name(self, client: int) -> str:
        """The client, with the name of its device if it has one."""
        name = self.device_names.get(client)
        return f"client {client} ({name})" if name else f"client {client}"

    @cached_property
    def device_names(self) -> dict[int, str]:
        return {client: device.name for device in self.devices for client in device.clients}

    @property
    def processors(self) -> set[str]:
        return {str(session.get("processor", "")) for session in self.sessions}


Groups = Mapping[str, Sequence[ShownRun]]
"""Runs by label; the runs of a group differ only in their seeds."""


def runs_of(groups: Groups) -> list[ShownRun]:
    return [run for runs in groups.values() for run in runs]


def final_model_of(runs: Sequence[ShownRun]) -> str:
    """Which models these runs end with; empty if they have no averages of models."""
    return " or ".join(sorted({run.history.final_model for run in runs} - {""}))


def metric_of(groups: Groups) -> MetricInfo:
    """The metric that all runs share."""
    return one_metric(run.history for run in runs_of(groups))


def read_run(path: Path, *, check_models: bool = True) -> ShownRun:
    """A run's folder, running or finished; its models are read only to check them."""
    folder = RunFolder.open(path)
    history, config = folder.history(), folder.config()
    if check_models:
        folder.check_models(history)
    plan, problem = _plan(folder)
    return ShownRun(
        name=path.resolve().name,
        seed=config.seed,
        history=history,
        rounds=config.rounds,
        config=config,
        plan=plan,
        plan_problem=problem,
        devices=_noted(folder, read_devices),
        sessions=_noted(folder, read_sessions),
        has_result=(path / "result.json").is_file(),
    )


def _plan(folder: RunFolder) -> tuple[Plan | None, str]:
    """The plan, or why it is not shown, such as a method whose code would have to be imported."""
    try:
        return folder.plan(), ""
    except FedpltError as error:
        problem = f"Who trains what is not shown: {error}"
        if isinstance(error, DamagedError):
            warnings.warn(problem, stacklevel=2)
        return None, problem


def _noted(folder: RunFolder, read: Callable[[Path, str], Sequence[Note]]) -> Sequence[Note]:
    """Read devices or sessions; a damaged file gives a warning and an empty list."""
    try:
        return read(folder.path, folder.run)
    except DamagedError as error:
        warnings.warn(
            f"{error} The report does without it; 'fedplt resume {folder.path}' writes it again.",
            stacklevel=2,
        )
        return []


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Folders of runs; a comparison's folder is replaced by those of its runs."""
    return [run.resolve() for path in paths for run in compared_runs(path) or [path]]


def compared_runs(path: Path) -> list[Path]:
    """The folders of a comparison's runs; none for the folder of one run."""
    if RunFolder.has_begun(path) or not path.is_dir():
        return []
    return sorted(inner for inner in path.iterdir() if RunFolder.has_begun(inner))


def read_groups(paths: Sequence[Path]) -> dict[str, list[ShownRun]]:
    """Runs by label; runs that differ only in their seed share a label.

    Runs of a comparison have its labels; its runs without an evaluated round are left out.
    """
    compared = {run.resolve() for path in paths for run in compared_runs(path)}
    read = {path: read_run(path) for path in run_folders(paths)}
    for path, run in list(read.items()):
        if not run.history.evaluated:
            if path not in compared or len(read) == 1:
                raise RunError(f"{run.name} has no evaluated round yet: nothing to report.")
            del read[path]
    keys = {path: _configuration(run, path in compared) for path, run in read.items()}
    labels = _labels({keys[path]: _names(run, path in compared) for path, run in read.items()})
    groups: dict[str, list[ShownRun]] = {}
    for path, run in read.items():
        groups.setdefault(labels[keys[path]], []).append(run)
    for members in groups.values():
        members.sort(key=lambda run: run.seed)
    return groups


_PER_RUN = ("seed", "name", "rounds", "checkpoint_every", "server.attempts")
"""Keys in which the runs of one group may differ, besides those of the engine."""


def _configuration(run: ShownRun, is_compared: bool) -> str:
    assert run.config is not None
    settings = {"label": run.config.name} if is_compared else {}
    settings |= {
        key: value
        for key, value in flatten(run.config).items()
        if key not in _PER_RUN and not key.startswith("engine.")
    }
    return json.dumps(settings, sort_keys=True, default=str)


def _names(run: ShownRun, is_compared: bool) -> tuple[str, str, str]:
    """Names from short to long: the method, then with the configuration, then with the folder.

    Runs of a comparison are named by its labels, which are their configurations' names.
    """
    assert run.config is not None
    method = str(run.config.method["name"]).rpartition(":")[2]
    name = run.config.name
    both = method if name in ("", method) else f"{name} {method}"
    return name if is_compared else method, both, f"{both} ({run.name})"


def _labels(names: Mapping[str, tuple[str, str, str]]) -> dict[str, str]:
    """The shortest names that distinguish the groups."""
    for length in range(3):
        chosen = {key: options[length] for key, options in names.items()}
        if len(set(chosen.values())) == len(chosen):
            return chosen
    return {key: f"{options[2]} #{i}" for i, (key, options) in enumerate(names.items(), start=1)}


def client_summary(record: RoundRecord) -> dict[str, float]:
    """Mean, std and quantiles over clients; empty if they were not evaluated."""
    found = record.client_scores or {}
    return {key: value for key, value in found.items() if not key.isdecimal()}


def scores_by_client(record: RoundRecord) -> dict[int, float]:
    """Scores by client; of a large fleet only the lowest and the highest."""
    found = record.client_scores or {}
    return {int(key): value for key, value in found.items() if key.isdecimal()}
