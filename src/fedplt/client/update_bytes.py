"""Read the bytes of an update that came from anybody.

The bytes are a safetensors file with one array and a header of plain values. Both headers are
checked field by field, by a parser with bounded depth, before any memory is taken for the numbers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedplt.errors import UpdateError
from fedplt.schema import first_problem
from fedplt.text import printable

MAX_HEADER = 1_000_000
"""Bytes of a header."""
MAX_EXAMPLES = 10**12
Kind = TypeVar("Kind", bound=BaseModel)
Number = Annotated[float, Field(allow_inf_nan=True)]
Index = Annotated[int, Field(ge=0, lt=2**63)]
Name = Annotated[str, Field(max_length=1000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Origin(_Strict):
    client: Index
    round: Index
    plan: Name


class UpdateHeader(_Strict):
    """The values beside the numbers."""

    format: Index
    num_examples: Annotated[int, Field(ge=1, le=MAX_EXAMPLES)]
    norm: Number
    metrics: Annotated[dict[Name, Number], Field(max_length=1000)]
    origin: _Origin | None = None


class _Array(_Strict):
    dtype: Literal["F32"]
    shape: Annotated[list[Index], Field(min_length=1, max_length=1)]
    data_offsets: Annotated[list[Index], Field(min_length=2, max_length=2)]


class _Metadata(_Strict):
    fedplt: Annotated[str, Field(max_length=MAX_HEADER)]


class _File(_Strict):
    metadata: Annotated[_Metadata, Field(alias="__metadata__")]
    update: _Array


def read_update(data: Any) -> tuple[UpdateHeader, NDArray[np.float32]]:
    """The header and a copy of the numbers."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UpdateError(f"an update is sent as bytes, not as {type(data).__name__}.")
    data = bytes(data)
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(MAX_HEADER, len(data) - 8):
        raise UpdateError("these bytes are not a client update: they have no header.")
    start = 8 + length
    file = _parse(_File, data[8:start])
    header = _parse(UpdateHeader, file.metadata.fedplt)
    (number,) = file.update.shape
    if file.update.data_offsets != [0, 4 * number] or len(data) - start != 4 * number:
        raise UpdateError(
            f"these bytes are not a client update: they say {number} numbers, and hold "
            f"{len(data) - start} bytes of them."
        )
    return header, np.frombuffer(data, dtype="<f4", offset=start).astype(np.float32)


def _parse(kind: type[Kind], text: str | bytes) -> Kind:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        reason = printable(first_problem(error), 200)
        raise UpdateError(f"these bytes are not a client update: {reason}") from None
