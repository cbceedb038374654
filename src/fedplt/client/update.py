"""A client's update: the change of the slices it trained, as one flat array."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.client.update_bytes import read_update
from fedplt.errors import UpdateError
from fedplt.planning import BYTES_PER_NUMBER, Assignment, update_header
from fedplt.text import brief

FORMAT = 1


@dataclass(frozen=True)
class Origin:
    """Whose update it is, of which round and by which plan."""

    client: int
    round: int
    plan: str
    """The plan's fingerprint."""


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """After minus before, of the trained slices only, in the plan's order.

    A slice is here if and only if it was trained; "not trained" is never inferred from zeros.
    """

    values: NDArray[np.float32]
    num_examples: int
    norm: float
    """Euclidean norm of the change of the parameters (buffers do not count)."""
    metrics: dict[str, float] = field(default_factory=dict)
    origin: Origin | None = None
    """With it, :func:`fedplt.validate` refuses another client's update, or an old one."""

    __repr__ = brief

    def to_bytes(self) -> bytes:
        """As safetensors: one array and a small header."""
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
        """Read what a client sent: anything but an update is refused as :class:`UpdateError`."""
        header, values = read_update(data)
        if header.format != FORMAT:
            raise UpdateError(
                f"this update has format {header.format}; this version reads {FORMAT}."
            )
        origin = None if header.origin is None else Origin(**header.origin.model_dump())
        return cls(values, header.num_examples, header.norm, header.metrics, origin)


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

    The last bits of a product depend on where its numbers begin in memory. Copies begin alike in
    every engine, so that the norm, and whom a sampler chooses by it, is the same in all.
    """
    parts = (values[start:stop].clone() for start, stop in assignment.parameter_segments)
    return math.sqrt(math.fsum(float(part @ part) for part in parts))


def weighted_norm(values: Tensor, weights: Tensor | None, assignment: Assignment) -> float | None:
    """Norm of an update as it will be aggregated; None without the weights of its values."""
    if weights is None:
        return None
    if len(weights) != len(values):
        raise UpdateError(f"{len(weights)} weights came for {len(values)} numbers.")
    return update_norm(values / weights, assignment)
