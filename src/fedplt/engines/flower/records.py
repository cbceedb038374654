"""Orders and answers as records of Flower."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedplt.engines.flower.wire import (
    MAX_ANSWER,
    MAX_HEADER,
    Answer,
    Arrays,
    dump_header,
    load_header,
)
from fedplt.errors import UpdateError
from fedplt.server import refusal
from fedplt.text import printable

NPY_HEADER = 1024
"""More bytes than the header of an array has."""
MAX_ARRAYS = 8
"""More arrays than a message has."""


def to_records(header: Mapping[str, Any], arrays: Arrays) -> RecordDict:
    records: dict[str, Any] = {"fedplt": ConfigRecord({"header": dump_header(header)})}
    if arrays:
        records["numbers"] = ArrayRecord(
            {name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()}
        )
    return RecordDict(records)


def from_records(
    records: RecordDict, max_header: int = MAX_HEADER
) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """The header and the arrays of a foreign message; :class:`UpdateError` if it is not one."""
    configs = records.config_records
    text = configs["fedplt"].get("header") if "fedplt" in configs else None
    header = load_header(text, max_header)
    arrays = records.array_records.get("numbers", ArrayRecord())
    if len(arrays) > MAX_ARRAYS:
        raise UpdateError(f"it holds {len(arrays)} arrays; a message has at most {MAX_ARRAYS}.")
    return header, {str(name): _numbers(str(name), array) for name, array in arrays.items()}


def _numbers(name: str, array: Array) -> NDArray[np.float32]:
    """Read one flat float32 array of NumPy's own format.

    The header's size, type and shape are compared with the declared ones and with the bytes that
    came before memory is taken. (``numpy.load`` would also open archives and pickles.)
    """
    shape, data = tuple(array.shape), array.data
    if array.dtype != "float32" or len(shape) != 1 or array.stype != "numpy.ndarray":
        raise UpdateError(f"{name!r} is of {array.dtype} {shape}; one flat float32 array is sent.")
    file = io.BytesIO(data[:NPY_HEADER])
    try:
        if npy.read_magic(file) != (1, 0):
            raise ValueError("the format is not NumPy's 1.0")
        found, _, dtype = npy.read_array_header_1_0(file, max_header_size=NPY_HEADER)
    except Exception as error:  # the bytes come from anybody
        raise UpdateError(f"{name!r} cannot be read: {type(error).__name__}: {error}") from error
    if dtype != np.dtype("<f4") or found != shape or len(data) != file.tell() + 4 * shape[0]:
        raise UpdateError(
            f"{name!r} says {shape[0]} float32 numbers but holds {dtype} {found} in "
            f"{len(data)} bytes."
        )
    return np.frombuffer(data, dtype="<f4", offset=file.tell()).astype(np.float32)


def answer_of(message: Message) -> Answer:
    """A node's reply; anything that cannot be read is an answer with an error."""
    try:
        if message.has_error():
            reason = message.error.reason or "no reason given"
            return Answer(error=printable(f"its node failed: {reason}"))
        header, arrays = from_records(message.content, MAX_ANSWER)
        if "refused" in header:
            return Answer(error=printable(str(header["refused"])))
        return Answer(header, arrays)
    except Exception as error:
        return Answer(error=refusal(error))
