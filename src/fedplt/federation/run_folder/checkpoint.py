"""``checkpoint.safetensors``: the state after some round, and the one before it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from fedplt.configuration import RunConfig, dump_config, flatten, read_config
from fedplt.errors import DamagedError, RunError
from fedplt.federation.job import Job
from fedplt.federation.run_folder.records import RoundRecord, Totals, WrittenTotals
from fedplt.federation.run_folder.sealed import checked, load_tensors, read_about, save_tensors
from fedplt.schema import Section

FORMAT = 2
KIND = "checkpoint"
MAY_CHANGE = (
    "name", "rounds", "checkpoint_every", "code", "server.attempts",
    "evaluation.keep_best", "evaluation.stop_after",
    "engine.name", "engine.workers", "engine.check", "engine.start_method",
    "engine.timeout_seconds", "engine.round_timeout_seconds", "engine.pin_nodes",
    "engine.on_round",
)  # fmt: skip
"""Keys that a resumed run may change: they do not affect the rounds already run."""


class _About(Section):
    """What a checkpoint says besides its tensors."""

    run: str
    format: Literal[2]
    rounds_done: Annotated[int, Field(ge=0, le=10**9)]
    total: WrittenTotals
    plan: str
    data: str
    devices: str | None
    config: str
    pending: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state after some round."""

    state: Tensor
    rounds_done: int
    total: Totals
    extras: dict[str, Tensor] = field(default_factory=dict)
    """Further state that the next round needs, such as the server optimizer's."""
    pending: RoundRecord | None = None
    """The last round's record as it was before its evaluation."""
    path: Path | None = None
    """The file that it was read from."""
    problem: str = ""
    """Why this is not the newest checkpoint; empty if it is."""


class CheckpointFiles:
    """The newest checkpoint of a run folder and the one before; ``run`` is the run's id."""

    def __init__(self, folder: Path, run: str | None) -> None:
        self.run = run
        self.newest = folder / "checkpoint.safetensors"
        self.previous = folder / "checkpoint.previous.safetensors"

    def exist(self) -> bool:
        return self.newest.exists() or self.previous.exists()

    def save(self, job: Job, saved: Checkpoint, *, replace_damaged: bool = False) -> None:
        """Write a checkpoint; ``replace_damaged``: overwrite the newest one, keep the previous."""
        assert self.run is not None
        about = {
            "format": FORMAT,
            "rounds_done": saved.rounds_done,
            "total": vars(saved.total),
            "plan": job.plan.fingerprint,
            "data": job.data_fingerprint,
            "devices": job.devices.fingerprint if job.devices else None,
            "config": dump_config(job.config),
            "pending": saved.pending.to_json() if saved.pending else None,
        }
        save_tensors(
            self.newest, {"state": saved.state, **saved.extras}, about, self.run, KIND,
            previous=None if replace_damaged else self.previous,
            private=job.config.privacy is not None,  # it has the key of the noise
        )  # fmt: skip

    def load(self, job: Job) -> Checkpoint:
        """The newest undamaged checkpoint; refused if configuration, plan or data differ."""
        path, tensors, about, problem = self._read()
        self._refuse_changes(path, about, job)
        state = tensors.pop("state", torch.empty(0))
        if state.shape != (job.layers.state_size,) or state.dtype != torch.float32:
            raise RunError(f"{path} holds the state of another model: start a new run.")
        if job.config.rounds < about.rounds_done:
            raise RunError(f"rounds: {about.rounds_done} are done already; set at least as many.")
        pending = None
        if about.pending is not None:
            pending = RoundRecord.from_json(about.pending, f"{path}: pending")
        return Checkpoint(state, about.rounds_done, about.total, tensors, pending, path, problem)

    def extras(self) -> dict[str, Tensor]:
        """The extras of the newest undamaged checkpoint, for any job."""
        return self._read()[1]

    def recorded_rounds(self) -> int:
        """How many rounds must have a record, by the newest readable checkpoint.

        A damaged checkpoint matters when the run is resumed, not when its records are read.
        """
        for path in (self.newest, self.previous):
            with suppress(RunError):
                about = _about(path, read_about(path, KIND, self.run))
                return about.rounds_done - (about.pending is not None)
        return 0

    def run_and_config(self) -> tuple[str, RunConfig]:
        """The id of the run, and the configuration that the checkpoint was written with."""
        path, _, about, _ = self._read()
        return about.run, read_config(about.config, path)

    def _read(self) -> tuple[Path, dict[str, Tensor], _About, str]:
        problems = []
        for path in (self.newest, self.previous):
            if not path.exists():
                problems.append(f"{path} is missing.")
                continue
            try:
                tensors, values = load_tensors(path, KIND, self.run)
                return path, tensors, _about(path, values), " ".join(problems)
            except DamagedError as error:
                problems.append(str(error))
        raise DamagedError(f"{' '.join(problems)} This run cannot be resumed; start a new one.")

    def _refuse_changes(self, path: Path, about: _About, job: Job) -> None:
        plan, folder = job.plan.fingerprint, self.newest.parent
        changed = changed_keys(flatten(read_config(about.config, path)), flatten(job.config))
        problem = ""
        if changed:
            problem = f"the configuration of {folder} was changed since it started: "
            problem += f"{'; '.join(changed)}. Set it back, or"
        elif about.plan != plan:
            problem = f"{path} belongs to plan {about.plan}, but this model and fleet give {plan}: "
            problem += "the model's code or the version of fedplt has changed;"
        elif about.data != job.data_fingerprint:
            problem = f"the training data or its split is not what {folder} was started with "
            problem += f"({job.data_fingerprint} instead of {about.data});"
        elif about.devices != (job.devices.fingerprint if job.devices else None):
            problem = f"fleet.devices: the devices are not what {folder} was started with: their "
            problem += "file was changed. Set it back, or"
        if problem:
            raise RunError(f"{problem} start a new run.")


def _about(path: Path, values: dict[str, Any]) -> _About:
    if values.get("format") != FORMAT:
        raise RunError(f"{path} has format {values.get('format')}; this version reads {FORMAT}.")
    return checked(TypeAdapter(_About), values, path)


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Keys that must not differ between two flat configurations but do, one text per key."""
    defaults = flatten(RunConfig())  # for keys that did not exist when the run was started
    old, new = {**defaults, **old}, {**defaults, **new}
    return [
        f"{key} was {old.get(key)!r}, is {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and key not in MAY_CHANGE
    ]
