"""What a client receives and uploads in a round, and how many bytes that is.

Both are one flat array as safetensors: float32, or bytes in another encoding
(:mod:`fedplt.planning.encoding`). Plans, costs and records take their sizes from here.
A client's report (number of examples, update norm, loss) is not part of the upload: engines
receive it after training, before they ask for the update. :meth:`fedplt.ClientUpdate.to_bytes`
sends both together; that takes :data:`REPORT_BYTES` more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from fedplt.planning.assignment import Assignment
from fedplt.planning.encoding import Encoding, Packing
from fedplt.planning.layers import Layers, merge

BYTES_PER_NUMBER = 4
REPORT_BYTES = 320
"""Length of a client's report in the header of an update; shorter ones are padded with spaces."""


def download_bytes(assignment: Assignment, encoding: Encoding = "float32") -> int:
    """Size of the model that the client receives."""
    tensors = [t for t in assignment.on_client.layers.tensors if t.name not in assignment.local]
    numbers = sum(t.num_elements for t in tensors)
    parameters = sum(t.num_elements for t in tensors if not t.is_buffer)
    return _message_bytes("model", Packing(numbers, ((0, parameters),), encoding))


def upload_bytes(assignment: Assignment, encoding: Encoding = "float32") -> int:
    """Size of the update that the client uploads; it depends on the assignment alone."""
    return _message_bytes("update", update_packing(assignment, encoding))


def update_packing(assignment: Assignment, encoding: Encoding) -> Packing:
    """How the values of an update are sent."""
    return Packing(assignment.update_size, tuple(assignment.parameter_segments), encoding)


def state_packing(layers: Layers, encoding: Encoding) -> Packing:
    """How the flat state of a whole model is sent."""
    parameters = merge((p.offset, p.stop) for p in layers.placed if not p.tensor.is_buffer)
    return Packing(layers.state_size, tuple(parameters), encoding)


def _message_bytes(name: str, packing: Packing) -> int:
    plain = packing.encoding == "float32"
    header = _header(name, packing.num_values) if plain else _header(name, packing.size, kind="U8")
    return len(header) + packing.size


def update_header(numbers: int, report: str) -> bytes:
    """The safetensors header of an update that is sent with its report.

    It is :data:`REPORT_BYTES` longer than that of an upload, or more if a user adds metrics.
    """
    least = len(_header("update", numbers)) + REPORT_BYTES
    return _header("update", numbers, {"__metadata__": {"fedplt": report}}, least)


def _header(
    name: str,
    numbers: int,
    metadata: Mapping[str, object] = MappingProxyType({}),
    least: int = 0,
    kind: str = "F32",
) -> bytes:
    """The header of a safetensors file with one array, padded with spaces as the format allows."""
    size = numbers * (1 if kind == "U8" else BYTES_PER_NUMBER)
    array = {"dtype": kind, "shape": [numbers], "data_offsets": [0, size]}
    text = json.dumps({**metadata, name: array}, separators=(",", ":")).encode()
    length = max(least - 8, -(-len(text) // 8) * 8)
    return length.to_bytes(8, "little") + text.ljust(length)
