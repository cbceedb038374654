"""The run that the attacks on folders use: six rounds without training, with all kinds of state."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.support.engines import NormsEngine
from tests.support.jobs import blob_job, blobs, small_model
from torch import Tensor

from fedplt.configs import find_fleet
from fedplt.errors import FedpltError
from fedplt.federation import History, Interrupted, Job, RunFolder, evaluate, load
from fedplt.federation.run_folder.sealed import tensors_digest
from fedplt.federation.start import run_job
from fedplt.report.page import read_run

SETTINGS: dict[str, Any] = {
    "rounds": 6,
    "fleet": {"devices": str(find_fleet("paper-example"))},
    "evaluation": {"keep_best": True},
    "checkpoint_every": 2,
    "server": {"optimizer": "adam", "learning_rate": 0.01},
    "sampling": {"name": "ocs", "budget": 4.0, "norms": "last"},
    "diagnostics": {"enabled": True, "window": 2},
}


def small_job(**settings: Any) -> Job:
    return blob_job(**{**SETTINGS, **settings})


def make_engine(job: Job, stop: Any) -> NormsEngine:
    return NormsEngine(job)


def whole_run(folder: Path, **settings: Any) -> None:
    run_job(small_job(**settings), folder, engine=make_engine)


def extended_run(folder: Path, earlier: Path) -> None:
    """A whole run that had ended after four rounds; ``earlier`` gets its files of then."""
    whole_run(folder, rounds=4)
    copy_of(folder, earlier)
    run_job(small_job(), folder, resume=True, engine=make_engine)


def broken_run(folder: Path, rounds: int = 5, **settings: Any) -> None:
    """A run that ended after so many rounds, as if it were killed."""

    def stop(record: Any) -> None:
        if record.round == rounds:
            raise KeyboardInterrupt

    try:
        run_job(small_job(**settings), folder, engine=make_engine, on_round=stop)
    except KeyboardInterrupt:
        return
    raise AssertionError("the run was not stopped")


@dataclass
class Seen:
    """What a reader of a folder gets, with the errors and warnings."""

    values: Any
    messages: list[str]

    @property
    def refused(self) -> bool:
        return self.values is None


def look(path: Path) -> Seen:
    """All that is read for reports and comparisons, and by ``load`` and ``evaluate``."""

    def read() -> Any:
        folder = RunFolder.open(path)
        plan, config, run = folder.plan(), folder.config(), read_run(path)
        config = config.model_copy(update={"code": None})  # which is where the folder is
        trained = _trained(path) if run.has_result else None
        return plain(run.history), plan.fingerprint, config, run.devices, run.sessions, trained

    return _listened(read)


def _trained(path: Path) -> tuple[str, float]:
    """The digest of the weights that ``load`` gives, and the score that ``evaluate`` gives."""
    model = load(path, model=small_model())
    found = evaluate(path, blobs(90, 2), model=small_model())
    return tensors_digest(model.state_dict()), found.score


def resume(path: Path, **settings: Any) -> Seen:
    """Continue a run to its end, as ``fedplt resume`` does; the final state and the records."""

    def go_on() -> Any:
        config = None
        if (path / "config.toml").exists():
            config = RunFolder.open(path).config()
        job = small_job(**settings)
        if config is not None:
            object.__setattr__(job, "config", config)
        history = run_job(job, path, resume=True, engine=make_engine)
        return state_of(job), plain(history)

    return _listened(go_on)


def _listened(action: Any) -> Seen:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            values, errors = action(), []
        except (FedpltError, Interrupted) as error:
            values, errors = None, [str(error)]
    return Seen(values, [*errors, *(str(warning.message) for warning in warned)])


def state_of(job: Job) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in job.model.state_dict().items()}


def plain(history: History) -> Any:
    """A history without times."""
    records = [{**record.to_json(), "seconds": 0} for record in history.rounds]
    return records, history.test_loss


def same_state(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def copy_of(folder: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place, symlinks=True)
    return place
