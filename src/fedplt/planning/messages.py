"""What a client receives and uploads in a round, and how many bytes that is.

Both are one flat float32 array as safetensors. Plans, costs and records take their sizes from here.
What a client reports about its update (examples, norm, loss) is not part of the upload: engines
receive it after training, before they ask for the update. :meth:`fedplt.ClientUpdate.to_bytes`
sends both together; that takes :data:`REPORT_BYTES` more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from fedplt.planning.assignment import Assignment

BYTES_PER_NUMBER = 4
REPORT_BYTES = 320
"""Length of a client's report in the header of an update; shorter ones are padded with spaces."""


def download_bytes(assignment: Assignment) -> int:
    """Size of the model that the client receives."""
    tensors = assignment.on_client.layers.tensors
    numbers = sum(t.num_elements for t in tensors if t.name not in assignment.local)
    return len(_header("model", numbers)) + BYTES_PER_NUMBER * numbers


def upload_bytes(assignment: Assignment) -> int:
    """Size of the update that the client uploads; it depends on the assignment alone."""
    numbers = assignment.update_size
    return len(_header("update", numbers)) + BYTES_PER_NUMBER * numbers


def update_header(numbers: int, report: str) -> bytes:
    """The bytes before the numbers of an update that is sent with its report.

    :data:`REPORT_BYTES` more than those of an upload; more only if a user adds metrics.
    """
    least = len(_header("update", numbers)) + REPORT_BYTES
    return _header("update", numbers, {"__metadata__": {"fedplt": report}}, least)


def _header(
    name: str, numbers: int, metadata: Mapping[str, object] = MappingProxyType({}), least: int = 0
) -> bytes:
    """The header of a safetensors file with one array, padded with spaces as the format allows."""
    array = {"dtype": "F32", "shape": [numbers], "data_offsets": [0, BYTES_PER_NUMBER * numbers]}
    text = json.dumps({**metadata, name: array}, separators=(",", ":")).encode()
    length = max(least - 8, -(-len(text) // 8) * 8)
    return length.to_bytes(8, "little") + text.ljust(length)
