"""Orders and answers as records of Flower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedplt.engines.flower.wire import Answer, Arrays, dump_header, load_header
from fedplt.errors import UpdateError

NPY_HEADER = 1024
"""More bytes than the header of an array has."""


def to_records(header: Mapping[str, Any], arrays: Arrays) -> RecordDict:
    records: dict[str, Any] = {"fedplt": ConfigRecord({"header": dump_header(header)})}
    if arrays:
        records["numbers"] = ArrayRecord(
            {name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()}
        )
    return RecordDict(records)


def from_records(records: RecordDict) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """The header and the arrays of a foreign message; :class:`UpdateError` if it is not one."""
    configs, arrays = records.config_records, records.array_records
    header = load_header(configs["fedplt"].get("header") if "fedplt" in configs else None)
    found = {}
    for name, array in arrays.get("numbers", ArrayRecord()).items():
        found[str(name)] = _numbers(str(name), array)
    return header, found


def _numbers(name: str, array: Array) -> NDArray[np.float32]:
    """Declared sizes are compared with the bytes that came, before any memory is taken for them."""
    shape = tuple(array.shape)
    if array.dtype != "float32" or len(shape) != 1 or array.stype != "numpy.ndarray":
        raise UpdateError(f"{name!r} is of {array.dtype} {shape}; one flat float32 array is sent.")
    if not 0 <= len(array.data) - 4 * shape[0] <= NPY_HEADER:
        raise UpdateError(f"{name!r} says {shape[0]} numbers but holds {len(array.data)} bytes.")
    try:
        numbers = array.numpy()
    except Exception as error:  # the bytes come from anybody
        raise UpdateError(f"{name!r} cannot be read: {type(error).__name__}") from error
    if numbers.dtype != np.float32 or numbers.shape != shape:
        raise UpdateError(f"{name!r} is not the array that it says it is.")
    return np.ascontiguousarray(numbers)


def answer_of(message: Message) -> Answer:
    if message.has_error():
        return Answer(error=f"its node failed: {message.error.reason or 'no reason given'}")
    try:
        header, arrays = from_records(message.content)
    except UpdateError as error:
        return Answer(error=str(error))
    if "refused" in header:
        return Answer(error=str(header["refused"])[:2000])
    return Answer(header, arrays)
