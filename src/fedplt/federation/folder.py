"""A run on disk.

    runs/<name>/
        config.toml             the whole configuration, defaults included
        plan.json               which client trains what
        metric.json             what the scores are: name, unit, direction, format
        rounds.jsonl            one line per round
        checkpoint.safetensors  the state after some round; written atomically
        model.safetensors       the final model, by parameter name
        best.safetensors        that of the best round, with evaluation.keep_best
        result.json             final numbers
        report.html             a report to open in a browser

A lock allows one writer at a time. No pickle is read or written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedplt.errors import FedpltError, RunError
from fedplt.federation.config import RunConfig
from fedplt.federation.config_file import dump_config, flatten, load_config
from fedplt.federation.continuing import how_to_continue
from fedplt.federation.job import Job
from fedplt.federation.lock import LOCK, take_lock
from fedplt.federation.metric_file import METRIC_FILE, read_metric, write_metric
from fedplt.federation.records import History, RoundRecord, Totals
from fedplt.files import write_atomically, write_text
from fedplt.methods import read_plan
from fedplt.planning import Plan

FORMAT = 1
SCRATCH = ".*.part"
"""Temporary files that a killed run leaves behind."""
MAY_CHANGE = (
    "name", "rounds", "checkpoint_every", "code", "server.attempts",
    "evaluation.keep_best", "evaluation.stop_after",
    "engine.name", "engine.workers", "engine.check", "engine.start_method",
    "engine.timeout_seconds", "engine.round_timeout_seconds", "engine.pin_nodes",
)  # fmt: skip
"""Keys that a resumed run may change: they do not affect the rounds already run."""


class RunFolder:
    """Reads and writes one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, job: Job) -> RunFolder:
        """Create and lock the folder of a new run; never overwrites a run that has begun."""
        cls.refuse_existing(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path} cannot be made: {error.strerror}") from error
        folder = cls(path)
        folder.lock()  # before anything is written: another run may start here
        try:
            cls.refuse_existing(path)  # another run may have begun before the lock was taken
            for scratch in path.glob(SCRATCH):
                scratch.unlink()
            folder.write_config(job.config)
            folder.write_plan(job.plan)
            write_metric(path, job.metric.info)
        except BaseException:
            folder.unlock()
            raise
        return folder

    @staticmethod
    def has_begun(path: Path) -> bool:
        """Whether the folder has a checkpoint to continue from."""
        return any((path / name).exists() for name in ("checkpoint.safetensors", "rounds.jsonl"))

    @classmethod
    def refuse_existing(cls, path: Path) -> None:
        """Accept a missing folder, an empty one, or that of a run that never began."""
        if path.is_dir() and not cls.has_begun(path):
            files, ours = list(path.iterdir()), (LOCK, "config.toml", "plan.json", METRIC_FILE)
            others = [file for file in files if file.name not in ours and not file.match(SCRATCH)]
            # A run writes its lock first: a config.toml without a lock is not from a run.
            if not files or ((path / LOCK).exists() and not others):
                return
        if path.exists():
            raise RunError(f"{path} already exists. {how_to_continue(path)}")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not (path / "config.toml").is_file():
            raise RunError(f"{path} is not a run folder: it has no config.toml.")
        return cls(path)

    def refuse_unbegun(self) -> None:
        if not self.has_begun(self.path):
            raise RunError(
                f"{self.path} never began: it ended before its first checkpoint. Start it again "
                f"with 'fedplt run {self.path / 'config.toml'} --out {self.path}' (from Python: "
                "fedplt.train without resume)."
            )

    def lock(self) -> None:
        """Become the only writer; the error names the process that holds the lock."""
        if self._lock is None:
            self._lock = take_lock(self.path)

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def config(self) -> RunConfig:
        return load_config(self.path / "config.toml")

    def write_config(self, config: RunConfig) -> None:
        write_text(self.path / "config.toml", dump_config(config))

    def write_plan(self, plan: Plan) -> None:
        write_text(self.path / "plan.json", json.dumps(plan.to_json()))

    def plan(self) -> Plan:
        path = self.path / "plan.json"
        try:
            return read_plan(json.loads(path.read_text(encoding="utf-8")))
        except FedpltError as error:
            raise RunError(f"{path} cannot be read: {error}") from error
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunError(f"{path} cannot be read: {error!r}") from error

    def append(self, record: RoundRecord) -> None:
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps(record.to_json()) + "\n")

    def rounds(self) -> list[RoundRecord]:
        """All complete records; an incomplete last line, left by a crash, is ignored."""
        path = self.path / "rounds.jsonl"
        lines = _read(path).splitlines() if path.exists() else []
        records: list[RoundRecord] = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(RoundRecord.from_json(json.loads(line)))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                if number < len(lines):
                    raise RunError(f"{path} is damaged in line {number}: {error!r}") from error
        return records

    def history(self) -> History:
        """All records, and the result if it belongs to the last recorded round."""
        path, records = self.path / "result.json", self.rounds()
        result: Any = {}
        if path.exists():
            try:
                result = dict(json.loads(_read(path)))
            except (ValueError, TypeError) as error:
                raise RunError(f"{path} is damaged: {error}") from error
        if not records or result.get("rounds") != records[-1].round:
            result = {}
        test = result.get("test_score", result.get("test_accuracy"))
        return History(records, test, result.get("test_loss"), read_metric(self.path))

    def keep_rounds(self, number: int) -> list[RoundRecord]:
        """Drop the records of rounds after the checkpoint, which are run again."""
        records = [record for record in self.rounds() if record.round <= number]
        if [record.round for record in records] != list(range(1, number + 1)):
            raise RunError(
                f"{self.path / 'rounds.jsonl'} has {len(records)} of the {number} rounds that the "
                "checkpoint counts: it was damaged or edited, and cannot be continued."
            )
        lines = [json.dumps(record.to_json()) + "\n" for record in records]
        write_text(self.path / "rounds.jsonl", "".join(lines))
        return records

    def reopen(self) -> None:
        """Delete the final artifacts (model, result, report): the run is being extended."""
        for name in ("result.json", "model.safetensors", "report.html"):
            (self.path / name).unlink(missing_ok=True)

    def save_checkpoint(
        self,
        state: Tensor,
        rounds_done: int,
        total: Totals,
        job: Job,
        extras: Mapping[str, Tensor] | None = None,
    ) -> None:
        """``extras``: further state that the next round needs, such as the server optimizer's."""
        metadata = {
            "format": FORMAT,
            "rounds_done": rounds_done,
            "total": vars(total),
            "plan": job.plan.fingerprint,
            "data": job.data_fingerprint,
            "devices": job.devices.fingerprint if job.devices else None,
            "config": flatten(job.config),
        }
        write_atomically(
            self.path / "checkpoint.safetensors",
            lambda path: save_file(
                {"state": state, **(extras or {})}, path, {"fedplt": json.dumps(metadata)}
            ),
        )

    def load_checkpoint(self, job: Job) -> tuple[Tensor, int, Totals]:
        """State, rounds done and totals; refused if configuration, plan or data differ."""
        self.refuse_unbegun()
        plan, config = job.plan, job.config
        path = self.path / "checkpoint.safetensors"
        try:
            with safe_open(path, "pt") as file:
                metadata: Any = json.loads(file.metadata()["fedplt"])
                state: Tensor = file.get_tensor("state").clone()
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{path} cannot be read ({error}): this run cannot be resumed."
            ) from error
        if metadata["format"] != FORMAT:
            raise RunError(f"{path} has format {metadata['format']}; this version reads {FORMAT}.")
        changed = changed_keys(metadata["config"], flatten(config))
        if changed:
            raise RunError(
                f"the configuration of {self.path} was changed since it started: "
                + "; ".join(changed)
                + ". Set it back, or start a new run."
            )
        if metadata["plan"] != plan.fingerprint or len(state) != plan.layers.state_size:
            raise RunError(
                f"{path} belongs to plan {metadata['plan']}, but this model and fleet give plan "
                f"{plan.fingerprint}. The model's code or the version of fedplt must have changed "
                "since; start a new run."
            )
        if metadata["data"] != job.data_fingerprint:
            raise RunError(
                f"the training data or its split is not what {self.path} was started with "
                f"({job.data_fingerprint} instead of {metadata['data']}). Start a new run."
            )
        if metadata.get("devices") != (job.devices.fingerprint if job.devices else None):
            raise RunError(
                f"fleet.devices: the devices are not what {self.path} was started with: their file "
                "was changed. Set it back, or start a new run."
            )
        done = int(metadata["rounds_done"])
        if config.rounds < done:
            raise RunError(f"rounds: {done} are done already; set at least as many.")
        return state, done, Totals(**metadata["total"])

    def load_extras(self) -> dict[str, Tensor]:
        """The checkpoint's ``extras``; call :meth:`load_checkpoint` first, which checks it."""
        with safe_open(self.path / "checkpoint.safetensors", "pt") as file:
            names = set(file.keys()) - {"state"}
            return {name: file.get_tensor(name).clone() for name in sorted(names)}

    def save_best(self, tensors: dict[str, Tensor], round: int) -> None:
        """Keep a model besides the last one; ``round`` counts from 1."""
        write_atomically(
            self.path / "best.safetensors",
            lambda path: save_file(tensors, path, {"format": str(FORMAT), "round": str(round)}),
        )

    def finish(self, tensors: dict[str, Tensor], result: dict[str, Any]) -> None:
        write_atomically(
            self.path / "model.safetensors",
            lambda path: save_file(tensors, path, {"format": str(FORMAT)}),
        )
        write_text(self.path / "result.json", json.dumps({"format": FORMAT, **result}, indent=2))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Keys that differ between two flat configurations and must not, one text per key."""
    defaults = flatten(RunConfig())  # for keys that did not exist when the run was started
    old, new = {**defaults, **old}, {**defaults, **new}
    return [
        f"{key} was {old.get(key)!r}, is {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and key not in MAY_CHANGE
    ]
