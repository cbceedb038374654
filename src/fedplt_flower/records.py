"""Messages as Flower records: a header of plain values (JSON) and a few flat arrays.

Arrays are float32; a model or an update in another encoding (``planning/encoding.py``) is bytes.
The receiver does not trust a message: sizes are checked before anything is parsed, and no name in
it is ever imported.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic_core import from_json

from fedplt.errors import UpdateError

Arrays = Mapping[str, NDArray[Any]]
ENCODED = ("state", "update")
"""Names of arrays that may be bytes."""
HEADER = "fedplt"
"""Name of the record with the header."""
MAX_ORDER_HEADER = 64_000_000
"""Limit in characters; the assignment of a large sub-model lists its units."""
MAX_ANSWER_HEADER = 2_000_000
"""Limit in characters: enough for a metric with 100,000 sums."""
NPY_HEADER = 1024
"""Upper bound on the bytes of an array's header."""
MAX_ARRAYS = 8


def to_records(header: Mapping[str, Any], arrays: Arrays) -> RecordDict:
    records: dict[str, Any] = {HEADER: ConfigRecord({"header": dump_header(header)})}
    if arrays:
        records["numbers"] = ArrayRecord(
            {name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()}
        )
    return RecordDict(records)


def from_records(
    records: RecordDict, max_header: int = MAX_ORDER_HEADER
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the arrays of an untrusted message, or :class:`UpdateError`."""
    configs = records.config_records
    text = configs[HEADER].get("header") if HEADER in configs else None
    header = load_header(text, max_header)
    arrays = records.array_records.get("numbers", ArrayRecord())
    if len(arrays) > MAX_ARRAYS:
        raise UpdateError(f"it holds {len(arrays)} arrays; a message has at most {MAX_ARRAYS}.")
    return header, {str(name): _numbers(str(name), array) for name, array in arrays.items()}


def dump_header(header: Mapping[str, Any]) -> str:
    return json.dumps(header, separators=(",", ":"))


def load_header(text: Any, most: int = MAX_ORDER_HEADER) -> dict[str, Any]:
    """Plain values of an untrusted header; its size is limited here, its depth by the parser."""
    if not isinstance(text, str) or len(text) > most:
        raise UpdateError(f"its header is missing or longer than {most} characters.")
    try:
        header = from_json(text)
    except ValueError as error:  # also deep nesting, and numbers of thousands of digits
        raise UpdateError(f"its header cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise UpdateError("its header is not a table.")
    return header


def _numbers(name: str, array: Array) -> NDArray[Any]:
    """Read one flat array in NumPy's format.

    Size, type and shape in its header are compared with the declared ones and with the received
    bytes before memory is allocated. (``numpy.load`` would also open archives and pickles.)
    """
    shape, data = tuple(array.shape), array.data
    allowed = ("float32", "uint8") if name in ENCODED else ("float32",)
    if array.dtype not in allowed or len(shape) != 1 or array.stype != "numpy.ndarray":
        kinds = " or ".join(allowed)
        raise UpdateError(f"{name!r} is of {array.dtype} {shape}; one flat {kinds} array is sent.")
    kind = np.dtype(array.dtype).newbyteorder("<")
    file = io.BytesIO(data[:NPY_HEADER])
    try:
        if npy.read_magic(file) != (1, 0):
            raise ValueError("the format is not NumPy's 1.0")
        found, _, dtype = npy.read_array_header_1_0(file, max_header_size=NPY_HEADER)
    except Exception as error:  # the bytes are untrusted
        raise UpdateError(f"{name!r} cannot be read: {type(error).__name__}: {error}") from error
    size = file.tell() + kind.itemsize * shape[0]
    if dtype != kind or found != shape or len(data) != size:
        raise UpdateError(
            f"{name!r} declares {shape[0]} {array.dtype} numbers but holds {dtype} {found} in "
            f"{len(data)} bytes."
        )
    return np.frombuffer(data, dtype=kind, offset=file.tell()).astype(array.dtype)
