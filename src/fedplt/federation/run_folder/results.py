"""Files of a run for its readers, beside the records: metric, models and final numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from fedplt.client import MetricInfo
from fedplt.errors import DamagedError, FedpltError
from fedplt.federation.run_folder.records import Finite, History
from fedplt.federation.run_folder.sealed import checked, load_tensors, read_json, tensors_digest
from fedplt.schema import Section

METRIC_FILE = "metric.json"
FINAL_MODEL, BEST_MODEL = "model.safetensors", "best.safetensors"
LAST_MODEL, AVERAGE_MODEL = "last.safetensors", "average.safetensors"
"""With ``server.average``: the name of the model that is not :data:`FINAL_MODEL`."""


def read_metric(folder: Path, run: str) -> MetricInfo:
    """The metric of a run, read without the user's code; ``run`` is its id."""
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
    """Raise DamagedError for a model that is damaged, or does not match records and result."""
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
    found = about.get("round", expected)  # earlier versions did not write it for the last model
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
    """The score of the last round's model in the last evaluation."""
    score_last_10: float | None = None
    """Mean score of the last 10 evaluations."""
    final_model: Literal["last model", "average of models"] | None = None
    """With ``server.average``: which one ``model.safetensors`` and the test score are of."""
    average_score_last: float | None = None
    average_score_last_10: float | None = None
    test_score: Finite | None = None
    test_loss: float | None = None
    privacy: dict[str, Any] | None = None
    weights_sha256: str | None = None
    """Digest of the final model's names, shapes and numbers. Equal for runs that end with the same
    bits; the files themselves differ in the id of the run."""


def read_result(path: Path, run: str) -> Result | None:
    """The result of a run; None if it has not ended."""
    return checked(TypeAdapter(Result), read_json(path, run), path) if path.exists() else None
