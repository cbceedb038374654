"""A run on disk.

    runs/<name>/
        config.toml             the whole configuration, defaults included
        plan.json               which client trains what
        metric.json             what the scores are: name, unit, direction, format
        rounds.jsonl            one line per round
        checkpoint.safetensors  the state after some round (checkpoint.previous: the one before)
        model.safetensors       the final model, by parameter name
        last.safetensors        with server.average: the last round's model, or average.safetensors
                                if that is the final one (server.average.ship)
        best.safetensors        the best round's model, with evaluation.keep_best
        result.json             final numbers
        updates/                remembered updates, with server.memory.store = "disk"
        sessions.json           versions and machine; devices.json: devices, with [fleet]
        report.html             a report to open in a browser

With ``[privacy]`` the checkpoints hold the key of the noise (``config.toml`` does with
``privacy.noise_seed``): they are created with mode 0600, readable for the owner only.
Every file carries the run's id and a digest of its content (``sealed.py``). A lock allows one
writer at a time. No pickle is read or written.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from fedplt.configuration import RunConfig, dump_config, how_to_continue, read_config
from fedplt.errors import ConfigError, DamagedError, FedpltError, RunError
from fedplt.federation.job import Job
from fedplt.federation.run_folder.checkpoint import Checkpoint, CheckpointFiles
from fedplt.federation.run_folder.lock import LOCK, is_of, take_lock
from fedplt.federation.run_folder.records import History, RoundRecord, is_nothing
from fedplt.federation.run_folder.records_file import RecordsFile, rounds_text
from fedplt.federation.run_folder.results import (
    AVERAGE_MODEL,
    BEST_MODEL,
    FINAL_MODEL,
    LAST_MODEL,
    METRIC_FILE,
    Result,
    check_model,
    read_metric,
    read_result,
)
from fedplt.federation.run_folder.sealed import (
    load_tensors,
    read_json,
    read_sealed,
    run_of,
    save_tensors,
    seal_json,
    seal_lines,
)
from fedplt.files import SCRATCH, a_path, make_folder, remove_scratch, write_text
from fedplt.methods import read_plan
from fedplt.planning import Plan

PLAN_FILE = "plan.json"
MODELS = (FINAL_MODEL, LAST_MODEL, AVERAGE_MODEL, BEST_MODEL)
FINAL = ("result.json", *MODELS[:-1], "report.html")
FILES = (
    *FINAL, BEST_MODEL, "rounds.jsonl", "checkpoint.safetensors", "checkpoint.previous.safetensors",
    "config.toml", PLAN_FILE, METRIC_FILE, "sessions.json", "devices.json", "tensorboard",
    "updates",
)  # fmt: skip
"""All files that a run writes, besides its lock and temporary files."""


class RunFolder:
    """Reads and writes one run's files."""

    def __init__(self, path: Path, run: str | None = None) -> None:
        self.path = path
        self._run = run
        self._lock: IO[str] | None = None

    def begin(self, job: Job, *, overwrite: bool = False) -> None:
        """Create and lock the folder of a new run; with ``overwrite``, delete the run there."""
        self.refuse_existing(self.path, overwrite=overwrite)
        try:
            make_folder(self.path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise RunError(f"{self.path} cannot be made: {why}") from error
        self.lock()  # before anything is written: another run may start here
        try:
            # Another run may have begun before the lock was taken.
            self.refuse_existing(self.path, overwrite=overwrite)
            if overwrite:
                self._clear()
            remove_scratch(self.path)
            self.write_config(job.config)
            self.write_json(PLAN_FILE, job.plan.to_json())
            self.write_json(METRIC_FILE, job.metric.info.to_json(), indent=1)
        except BaseException:
            self.unlock()
            raise

    @staticmethod
    def has_begun(path: Path) -> bool:
        """Whether the folder has a checkpoint to continue from."""
        return CheckpointFiles(path, None).exist() or (path / "rounds.jsonl").exists()

    @classmethod
    def refuse_existing(cls, path: Path, *, overwrite: bool = False) -> None:
        """Accept a missing folder, an empty one, or the folder of a run that never began.

        ``overwrite``: also that of any run, recognized by its lock and configuration or checkpoint.
        """
        is_run = (path / LOCK).exists() and ((path / "config.toml").exists() or cls.has_begun(path))
        if overwrite and is_run:
            return
        if path.is_dir() and not cls.has_begun(path):
            files, ours = list(path.iterdir()), (LOCK, "config.toml", "plan.json", METRIC_FILE)
            others = [file for file in files if file.name not in ours and not file.match(SCRATCH)]
            # A run writes its lock first: a config.toml without a lock is not from a run.
            if not files or ((path / LOCK).exists() and not others):
                return
        if path.exists():
            raise RunError(f"{path} already exists. {how_to_continue(path)}")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        path = a_path(path, "the folder of a run", RunError)
        if not (path / "config.toml").is_file() and not CheckpointFiles(path, None).exist():
            raise RunError(f"{path} is not a run folder: it has no config.toml.")
        return cls(path)

    def refuse_unbegun(self) -> None:
        if not self.has_begun(self.path):
            raise RunError(
                f"{self.path} never began: it ended before its first checkpoint. Start it again "
                f"with 'fedplt run {self.path / 'config.toml'} --out {self.path}' (from Python: "
                "fedplt.train without resume)."
            )

    @property
    def is_locked(self) -> bool:
        return self._lock is not None

    def lock(self) -> None:
        """Become the only writer; the error names the process that holds the lock."""
        if self._lock is None:
            self._lock = take_lock(self.path)

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def run(self) -> str:
        """The id of the run; every file carries it."""
        if self._run is None:
            self._config_text()
        assert self._run is not None
        return self._run

    def config(self) -> RunConfig:
        return read_config(self._config_text(), self.path / "config.toml")

    def _config_text(self) -> str:
        """The text of ``config.toml``, checked; its seal has the run's id."""
        path = self.path / "config.toml"
        if not path.exists():
            do = f"'fedplt resume {self.path}' writes it again, as the checkpoint has it."
            raise RunError(f"{path} is missing. {do}")
        text = read_sealed(path)
        try:
            self._run = run_of(text, "config", path, self._run)
        except DamagedError as error:
            raise DamagedError(
                f"{error} Set it back, or delete the file: 'fedplt resume {self.path}' writes it "
                "again. Change a run with 'fedplt resume --set', not by hand."
            ) from error
        return text

    def restore_config(self) -> None:
        """Write a missing ``config.toml`` again, from the checkpoint."""
        if not (self.path / "config.toml").exists():
            self._run, config = CheckpointFiles(self.path, None).run_and_config()
            self.write_config(config)
            warnings.warn(f"{self.path / 'config.toml'} was missing: written again.", stacklevel=2)

    def write_config(self, config: RunConfig) -> None:
        with self._writing("config.toml"):
            text = seal_lines(dump_config(config), self.run, "config")
            holds_key = config.privacy is not None and config.privacy.noise_seed is not None
            write_text(self.path / "config.toml", text, private=holds_key)

    def write_json(self, name: str, values: Mapping[str, Any], indent: int | None = None) -> None:
        """Write a sealed file; its kind is its name (``plan.json``: ``plan``)."""
        with self._writing(name):
            path = self.path / name
            write_text(path, seal_json(values, self.run, path.stem, indent))

    def plan(self) -> Plan:
        """The plan; reading it does not import the method that the file names."""
        path = self.path / PLAN_FILE
        values = read_json(path, self.run)
        try:
            return read_plan(values)
        except FedpltError as error:
            raise RunError(f"{path} cannot be read: {error}") from error
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise DamagedError(f"{path} cannot be read: {error!r}") from error

    def restore_plan_and_metric(self, job: Job) -> None:
        """Write damaged files again; refuse another metric: one run has scores of one metric."""
        metric = job.metric.info
        for name, described in ((PLAN_FILE, job.plan), (METRIC_FILE, metric)):
            try:
                read_json(self.path / name, self.run)
            except RunError as error:
                self.write_json(name, described.to_json())
                warnings.warn(f"{error} It was written again.", stacklevel=2)
        known = read_metric(self.path, self.run)
        if known != metric:
            raise ConfigError(
                f"the scores of {self.path} are {known.label}, {known.direction} is better, not "
                f"{metric.label}, {metric.direction} is better: they cannot be in one run. Give "
                "the same metric, or another folder."
            )

    def append(self, record: RoundRecord) -> None:
        with self._writing("rounds.jsonl"):
            self.records_file.append(record)

    def rounds(self) -> list[RoundRecord]:
        """All complete records; an incomplete last line, left by a crash, is ignored."""
        return self.records_file.read()

    @property
    def records_file(self) -> RecordsFile:
        return RecordsFile(self.path / "rounds.jsonl", self.run)

    def history(self) -> History:
        """All records, and the result; a warning names the rounds that have no record.

        Raises DamagedError for files of different times, such as an earlier result.
        """
        # Read the checkpoint and the result first: an active run adds records in the meantime.
        expected = self._checkpoints.recorded_rounds()
        result, records, config = self.result(), self.rounds(), self.config()
        last = records[-1].round if records else 0
        there, known = {record.round for record in records}, max(expected, last)
        again = f"it is an earlier one. 'fedplt resume {self.path}' writes it again"
        if (wanted := config.rounds) < known:
            problem = f"{self.path / 'config.toml'} asks for {wanted} rounds, but the run has "
            raise DamagedError(f"{problem}{known}: {again} if you delete it.")
        if result and result.rounds < known:
            problem = f"{self.path / 'result.json'} is of round {result.rounds}, but the run has "
            raise DamagedError(f"{problem}{known} rounds: {again}.")
        known = max(known, result.rounds if result else 0)
        if missing := [round for round in range(1, known + 1) if round not in there]:
            warnings.warn(
                f"{self.path / 'rounds.jsonl'} has no record of {rounds_text(missing)}: these "
                "lines are lost. Scores and costs of these rounds are left out.",
                stacklevel=2,
            )
        metric = read_metric(self.path, self.run)
        test = (result.test_score, result.test_loss) if result else (None, None)
        ship = config.server.average.ship if config.server.average else False
        if result and result.final_model:  # records may be lost: do not choose again
            ship = result.final_model == "average of models"
        return History(records, *test, metric, ship)

    def result(self) -> Result | None:
        """The final numbers; None if the run has not ended."""
        return read_result(self.path / "result.json", self.run)

    def check_models(self, history: History | None = None) -> None:
        """Raise DamagedError if a model is not what the run wrote; only warn for the best one."""
        history, result = history or self.history(), self.result()
        for path in (self.path / name for name in MODELS):
            try:
                if path.exists():
                    check_model(path, self.run, history, result)
            except DamagedError as error:
                if path.name != BEST_MODEL:
                    raise
                warnings.warn(f"{error}", stacklevel=2)

    def model_file(self, which: str) -> Path:
        """The file of an undamaged model: ``model``, ``best``, ``last`` or ``average``."""
        settings = self.config().server.average
        ends_with_average = settings and not (self.path / AVERAGE_MODEL).exists()
        if which == ("average" if ends_with_average else "last"):
            which = "model"
        path = self.path / f"{which}.safetensors"
        if path.name not in MODELS:
            known = ", ".join(Path(name).stem for name in MODELS)
            raise RunError(f"there is no model {which!r}; choose one of {known}.")
        if not path.exists():
            do = f"Finish the run first: fedplt resume {self.path}."
            if path.name == BEST_MODEL:
                do = "Set evaluation.keep_best = true before a run."
            elif which == "average" and not settings:
                do = "Set server.average before a run."
            raise RunError(f"{path} does not exist. {do}")
        check_model(path, self.run, self.history(), self.result())
        return path

    def _clear(self) -> None:
        """Delete the files of a run, and no others."""
        for name in FILES:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def reopen(self) -> None:
        """Delete the final artifacts (model, result, report): the run is being extended."""
        for name in FINAL:
            (self.path / name).unlink(missing_ok=True)

    def save_checkpoint(
        self, job: Job, saved: Checkpoint, *, replace_damaged: bool = False
    ) -> None:
        """Write a checkpoint; ``replace_damaged``: overwrite the newest one, keep the previous."""
        with self._writing("checkpoint.safetensors"):
            self.records_file.sync()  # a checkpoint never counts records that are not on disk
            self._checkpoints.save(job, saved, replace_damaged=replace_damaged)

    def load_checkpoint(self, job: Job) -> Checkpoint:
        """The newest undamaged checkpoint; refused if configuration, plan or data differ."""
        self.refuse_unbegun()
        return self._checkpoints.load(job)

    def go_on_from(self, checkpoint: Checkpoint) -> list[RoundRecord]:
        """Reset the folder to this checkpoint; return the records of its rounds."""
        remove_scratch(self.path)
        if checkpoint.problem:
            warnings.warn(
                f"{checkpoint.problem} The run goes on from the checkpoint before, after round "
                f"{checkpoint.rounds_done}.",
                stacklevel=2,
            )
        try:
            if (self.path / BEST_MODEL).exists():
                load_tensors(self.path / BEST_MODEL, "model", self.run)
        except DamagedError as error:
            warnings.warn(f"{error} The run continues; a better round replaces it.", stacklevel=2)
        pending = checkpoint.pending.round if checkpoint.pending else None
        with self._writing("rounds.jsonl"):
            return self.records_file.keep(checkpoint.rounds_done, pending)

    @property
    def _checkpoints(self) -> CheckpointFiles:
        return CheckpointFiles(self.path, self.run)

    def save_model(self, name: str, tensors: dict[str, Tensor], round: int) -> str:
        """Write a model after a round (from 1); returns the digest of its weights."""
        with self._writing(name):
            return save_tensors(self.path / name, tensors, {"round": round}, self.run, "model")

    def finish(self, models: Mapping[str, dict[str, Tensor]], result: dict[str, Any]) -> None:
        """Write the models, by file name, and the result without its non-finite numbers."""
        with self._writing("rounds.jsonl"):
            self.records_file.sync()
        digests = {name: self.save_model(name, models[name], result["rounds"]) for name in models}
        known = {key: value for key, value in result.items() if not is_nothing(value)}
        known["weights_sha256"] = digests[FINAL_MODEL]
        self.write_json("result.json", {"format": 2, **known}, indent=2)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Explain a failed write (such as a full disk); refuse a folder that was moved."""
        if self._lock is not None and not is_of(self._lock, self.path):
            raise RunError(
                f"{self.path} was moved or deleted while the run was writing to it. Move it back "
                f"and continue with 'fedplt resume {self.path}'."
            )
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.path / name} cannot be written: {error.strerror or error}. Then continue "
                f"with 'fedplt resume {self.path}'."
            ) from error


def load_history(folder: str | Path) -> History:
    """The history of a run on disk, finished or not."""
    return RunFolder.open(folder).history()
