"""Files that a run leaves for its readers: records, metric, models and final numbers."""

from __future__ import annotations

import warnings
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from fedplt.client import MetricInfo
from fedplt.errors import DamagedError, FedpltError, RunError
from fedplt.federation.run_folder.records import Finite, History, RoundRecord
from fedplt.federation.run_folder.sealed import (
    checked,
    load_tensors,
    open_json,
    read_json,
    seal_json,
    tensors_digest,
)
from fedplt.files import append_text, read_file, sync, write_text
from fedplt.schema import Section

METRIC_FILE = "metric.json"
FINAL_MODEL, BEST_MODEL = "model.safetensors", "best.safetensors"
LAST_MODEL, AVERAGE_MODEL = "last.safetensors", "average.safetensors"
"""With ``server.average``: the one of the two that :data:`FINAL_MODEL` is not."""


class RecordsFile:
    """``rounds.jsonl``: one sealed line per round; ``run`` is the run's id."""

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run

    def append(self, record: RoundRecord) -> None:
        append_text(self.path, self._line(record))

    def sync(self) -> None:
        """Wait until the disk has all lines; called before a checkpoint that counts them."""
        if self.path.exists():
            sync(self.path)

    def read(self) -> list[RoundRecord]:
        """All complete records; an incomplete last line, left by a crash, is ignored."""
        records, damage = self._read()
        if damage:
            raise DamagedError(
                f"{damage[0]} 'fedplt resume {self.path.parent}' leaves such lines out, and lists "
                "the rounds without a record."
            ) from damage[0]
        return records

    def last_round(self) -> int:
        """The last round with a complete record; 0 if there is none."""
        return max((record.round for record in self._read()[0]), default=0)

    def keep(self, number: int, pending: int | None = None) -> list[RoundRecord]:
        """Drop damaged lines, and the records of rounds after ``number``, which are run again.

        A warning names the rounds without a record, except ``pending``: that of the last round is
        in the checkpoint.
        """
        records, damage = self._read()
        records = [record for record in records if record.round <= number]
        there = {pending, *(record.round for record in records)}
        missing = [round for round in range(1, number + 1) if round not in there]
        if missing:
            why = f" ({damage[0]})" if damage else ""
            warnings.warn(
                f"{self.path} has no record of {rounds_text(missing)}{why}. The run continues; its "
                "report and curves leave these out.",
                stacklevel=2,
            )
        write_text(self.path, "".join(map(self._line, records)))
        return records

    def _read(self) -> tuple[list[RoundRecord], list[DamagedError]]:
        """Complete records, and what is wrong with the other lines."""
        try:  # bytes that are not text show as a damaged line
            lines = read_file(self.path).decode("utf-8", "replace").split("\n")[:-1]
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror or error}") from error
        records: list[RoundRecord] = []
        damage: list[DamagedError] = []
        for number, line in enumerate(lines, start=1):
            place = f"{self.path}, line {number}"
            try:
                record = RoundRecord.from_json(open_json(line, "record", place, self.run), place)
                if records and record.round <= records[-1].round:
                    raise DamagedError(f"{place}: duplicate round {record.round}.")
                records.append(record)
            except DamagedError as error:
                damage.append(error)
        return records, damage

    def _line(self, record: RoundRecord) -> str:
        return seal_json(record.to_json(), self.run, "record") + "\n"


def rounds_text(rounds: list[int]) -> str:
    """``rounds 3 to 5, 9``."""
    parts = []
    for _, group in groupby(enumerate(rounds), lambda pair: pair[1] - pair[0]):
        run = [round for _, round in group]
        parts.append(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]))
    shown = ", ".join(parts[:10]) + (", ..." if len(parts) > 10 else "")
    return f"round {shown}" if len(rounds) == 1 else f"rounds {shown}"


def read_metric(folder: Path, run: str) -> MetricInfo:
    """What the scores of a run are, for readers without the user's code; ``run`` is its id."""
    path = folder / METRIC_FILE
    try:
        values = read_json(path, run)
    except DamagedError as error:
        raise DamagedError(f"{error} 'fedplt resume {folder}' writes it again.") from error
    try:
        return MetricInfo.from_json(values)
    except (FedpltError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error


def check_model(path: Path, run: str, history: History, result: Result | None) -> None:
    """Raise DamagedError for a model that is damaged, or not of these records and this result."""
    is_best = path.name == BEST_MODEL
    again = f"'fedplt resume {path.parent}' writes it again."
    if is_best:
        again = "It cannot be computed again: delete it, or start a new run."
    try:
        tensors, about = load_tensors(path, "model", run)
    except DamagedError as error:
        raise DamagedError(f"{error} {again}") from error
    record = history.best if is_best else history.rounds[-1] if history.rounds else None
    expected = record.round if record else 0
    found = about.get("round", expected)  # an earlier version did not write it for the last
    if found != expected and (is_best or found < expected):
        raise DamagedError(
            f"{path} is of round {found}, but the {'best' if is_best else 'last'} recorded round "
            f"is {expected}: the run was stopped in between, or this is an earlier file. {again}"
        )
    digest = result.weights_sha256 if result and path.name == FINAL_MODEL else None
    if digest not in (None, tensors_digest(tensors)):
        raise DamagedError(
            f"{path} is not the model that result.json describes (weights_sha256): one of the two "
            f"is an earlier file. {again}"
        )


class Result(Section):
    """``result.json``: the final numbers of a run."""

    format: Literal[2]
    rounds: Annotated[int, Field(ge=0)]
    score_last: float | None = None
    """Of the last evaluation."""
    score_last_10: float | None = None
    """Mean of the last 10 evaluations."""
    test_score: Finite | None = None
    test_loss: float | None = None
    privacy: dict[str, Any] | None = None
    weights_sha256: str | None = None
    """Digest of the final model's names, shapes and numbers: equal for runs that end with the same
    bits, although their files differ in the id of the run."""


def read_result(path: Path, run: str) -> Result | None:
    """The result of a run; None if it has not ended."""
    return checked(TypeAdapter(Result), read_json(path, run), path) if path.exists() else None
