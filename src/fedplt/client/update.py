"""A client's update: the change of the slices it trained, as one flat array, and its bytes.

Without an encoding, the bytes are a safetensors file with one array and a header of plain values.
:class:`Uplink` sends fewer bytes, and adds what an encoding loses to the client's next upload.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fedplt.errors import UpdateError
from fedplt.kernels import put, take
from fedplt.planning import (
    BYTES_PER_NUMBER,
    Assignment,
    Encoding,
    Values,
    update_header,
    update_packing,
)
from fedplt.schema import first_problem
from fedplt.text import brief, printable

FORMAT = 1
MAX_HEADER = 1_000_000
"""Maximum size of a header in bytes."""
MAX_EXAMPLES = 10**12
Kind = TypeVar("Kind", bound=BaseModel)
Number = Annotated[float, Field(allow_inf_nan=True)]
Index = Annotated[int, Field(ge=0, lt=2**63)]
Name = Annotated[str, Field(max_length=1000)]


@dataclass(frozen=True)
class Origin:
    """The client, round and plan of an update."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    client: Index
    round: Index
    plan: Name
    """The plan's fingerprint."""


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """New minus old values of the trained slices only, in the plan's order.

    A slice is included if and only if it was trained; "not trained" is never inferred from zeros.
    """

    values: NDArray[np.float32]
    num_examples: int
    norm: float
    """Euclidean norm of the change of the parameters (buffers do not count)."""
    metrics: dict[str, float] = field(default_factory=dict)
    origin: Origin | None = None
    """Lets :func:`fedplt.validate` refuse another client's update, or an old one."""

    __repr__ = brief

    def to_bytes(self) -> bytes:
        """The update as safetensors bytes: one array and a small header."""
        return self._header() + self.values.astype("<f4").tobytes()

    @property
    def num_bytes(self) -> int:
        """``len(self.to_bytes())``, without serializing."""
        return len(self._header()) + BYTES_PER_NUMBER * len(self.values)

    def _header(self) -> bytes:
        values = {"format": FORMAT, "num_examples": self.num_examples, "norm": self.norm}
        origin = {} if self.origin is None else {"origin": vars(self.origin)}
        metadata = json.dumps({**values, "metrics": self.metrics, **origin}, separators=(",", ":"))
        return update_header(len(self.values), metadata)

    @classmethod
    def from_bytes(cls, data: bytes) -> ClientUpdate:
        """Read an update that a client sent; raises :class:`UpdateError` for anything else."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UpdateError(f"an update is sent as bytes, not as {type(data).__name__}.")
        data = bytes(data)
        start = 8 + int.from_bytes(data[:8], "little")
        if len(data) < 8 or start > min(8 + MAX_HEADER, len(data)):
            raise UpdateError("these bytes are not a client update: they have no header.")
        # Both headers are checked field by field before any memory is taken for the numbers.
        file = _parse(_File, data[8:start])
        header = _parse(_Header, file.metadata["fedplt"])
        (number,) = file.update.shape
        if header.format != FORMAT:
            raise UpdateError(
                f"this update has format {header.format}; this version reads {FORMAT}."
            )
        if file.update.data_offsets != (0, 4 * number) or len(data) - start != 4 * number:
            raise UpdateError(
                f"these bytes are not a client update: the header has {number} numbers, and "
                f"{len(data) - start} bytes follow."
            )
        values = np.frombuffer(data, dtype="<f4", offset=start).astype(np.float32)
        return cls(values, header.num_examples, header.norm, header.metrics, header.origin)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Header(_Strict):
    """The metadata of an update."""

    format: Index
    num_examples: Annotated[int, Field(ge=1, le=MAX_EXAMPLES)]
    norm: Number
    metrics: Annotated[dict[Name, Number], Field(max_length=1000)]
    origin: Origin | None = None


class _Array(_Strict):
    dtype: Literal["F32"]
    shape: tuple[Index]
    data_offsets: tuple[Index, Index]


class _File(_Strict):
    metadata: Annotated[dict[Literal["fedplt"], str], Field(alias="__metadata__", min_length=1)]
    update: _Array


def _parse(kind: type[Kind], text: str | bytes) -> Kind:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        reason = printable(first_problem(error), 200)
        raise UpdateError(f"these bytes are not a client update: {reason}") from None


def change_since(before: Tensor, after: Iterable[Tensor]) -> Tensor:
    """After minus before, computed in place: ``before`` is a flat copy of the old values."""
    start = 0
    with torch.no_grad():
        for part in after:
            old = before[start : start + part.numel()]
            torch.sub(part.reshape(-1).to(old.device), old, out=old)
            start += part.numel()
    return before


def update_norm(values: Tensor, assignment: Assignment) -> float:
    """Euclidean norm of an update's parameters; buffers do not count.

    The last bits of a product depend on the alignment of its operands in memory. Copies are aligned
    alike in every engine, so the norm, and thus a sampler's choice, is the same in all engines.
    """
    parts = (values[start:stop].clone() for start, stop in assignment.parameter_segments)
    return math.sqrt(math.fsum(float(part @ part) for part in parts))


def weighted_norm(values: Tensor, weights: Tensor | None, assignment: Assignment) -> float | None:
    """Norm of an update as it will be aggregated; None if the weights are not given."""
    if weights is None:
        return None
    if len(weights) != len(values):
        raise UpdateError(f"{len(weights)} weights came for {len(values)} numbers.")
    return update_norm(values / weights, assignment)


class Uplink:
    r"""Encodes updates; holds the residuals :math:`e_k` of one client, or of all in a simulation.

    .. math:: \text{upload } Q(U_k + e_k), \qquad e_k \leftarrow U_k + e_k - Q(U_k + e_k)

    :math:`e_k` stays on the client: one value per value of the model, 0 where it never trained. An
    upload changes only the residuals of its slice.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.residuals: dict[int, Tensor] = {}
        self._next: dict[int, Tensor] = {}

    def send(self, client: int, values: Values, assignment: Assignment) -> tuple[bytes, Values]:
        """The bytes of an update, and the values that the server reads from them.

        The residual changes only when :meth:`keep` is called, after the server got the update.
        """
        packing, place = update_packing(assignment, self.encoding), assignment.uploaded
        old = self.residuals.get(client)
        residual = torch.zeros(assignment.layers.state_size) if old is None else old.clone()
        wanted = values + take(residual, place).numpy()
        data = packing.encode(wanted)
        read = packing.decode(data)
        put(residual, place, torch.from_numpy(wanted - read))
        self._next[client] = residual
        return data, read

    def keep(self, clients: Iterable[int]) -> None:
        """Keep the residuals of these clients' uploads; forget those of others."""
        self.residuals |= {k: self._next[k] for k in clients if k in self._next}
        self._next = {}

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; :meth:`restore` reads it."""
        return {f"residual.{client}": tensor for client, tensor in self.residuals.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.residuals = {
            int(name.removeprefix("residual.")): tensor
            for name, tensor in tensors.items()
            if name.startswith("residual.")
        }
        self._next = {}
