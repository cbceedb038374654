"""``result.json``: the final numbers of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from fedplt.federation.run_folder.record_fields import Finite
from fedplt.federation.run_folder.records import is_nothing
from fedplt.federation.run_folder.sealed import damaged_field, open_json, read_sealed, seal_json
from fedplt.files import write_text
from fedplt.schema import Section

FORMAT = 2
KIND = "result"


class Result(Section):
    """What a run says at its end."""

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
    """Of the final model's names, shapes and numbers: equal for runs that end with the same bits,
    whose files differ in the id of their run."""


def write_result(path: Path, values: Mapping[str, Any], run: str) -> None:
    """Unknown values are left out, and those that are not finite: a reader refuses them."""
    known = {key: value for key, value in values.items() if not is_nothing(value)}
    write_text(path, seal_json({"format": FORMAT, **known}, run, KIND, indent=2))


def read_result(path: Path, run: str) -> Result | None:
    """The result of a run that has ended; None if it has not."""
    if not path.exists():
        return None
    try:
        return Result.model_validate(open_json(read_sealed(path), KIND, path, run))
    except ValidationError as error:
        raise damaged_field(path, error) from None
