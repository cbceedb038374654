r"""How the server sends the global model, and what the clients then have (``messages.down``).

``float32``: the model. ``float16``, ``int8``: the rounded model. ``int4``, ``int2``: *differences*
to a reference :math:`\hat W`, which the clients of the last round have,

.. math:: \hat W \leftarrow \hat W + Q(W - \hat W),

and clients train from :math:`\hat W`. The next difference contains the rounding error of this one
(error feedback). A client that missed a round receives the reference as int8. If it also takes part
in the next round, it receives the exact reference once, and then differences. The first reference
is the initial model as int8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.kernels import take
from fedplt.planning import DIFFERENCES, Assignment, Encoding, Layers, Packing, state_packing

SNAPSHOT: Encoding = "int8"
"""Encoding of the reference for a client that missed a round."""
NEVER = -1


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What the clients of one round receive."""

    state: Tensor
    """The model that most clients train from."""
    encoding: Encoding = "float32"
    """The encoding in which they receive it."""
    others: Mapping[int, Encoding] = field(default_factory=dict)
    """Clients that receive another encoding."""
    snapshot: Tensor | None = None
    """The model of clients that receive the reference as :data:`SNAPSHOT`."""
    data: bytes = b""
    """The bytes for most clients: the whole model, or the difference to the reference."""
    snapshot_data: bytes = b""
    """The bytes of the snapshot. (Encoding its values again could change their last bits.)"""

    def encoding_of(self, client: int) -> Encoding:
        return self.others.get(client, self.encoding)

    def state_of(self, client: int) -> Tensor:
        """The model that a client trains from."""
        if self.snapshot is not None and self.others.get(client) == SNAPSHOT:
            return self.snapshot
        return self.state

    def array_of(self, client: int, assignment: Assignment) -> NDArray[Any]:
        """What a client receives: float32 values, or the bytes of another encoding."""
        encoding, state = self.encoding_of(client), self.state_of(client)
        if encoding not in ("float32", "float16"):
            return np.frombuffer(self.data if state is self.state else self.snapshot_data, np.uint8)
        values: NDArray[Any] = take(state, assignment.received).numpy()
        if encoding == "float32":
            return values
        packing = state_packing(assignment.on_client.layers, encoding)  # a sub-model's part
        return np.frombuffer(packing.encode(values), np.uint8)


class Downlink:
    """The reference, and which clients have it."""

    def __init__(self, layers: Layers, num_clients: int, encoding: Encoding) -> None:
        self.layers, self.encoding = layers, encoding
        self.reference: Tensor | None = None
        self._last = np.full(num_clients, NEVER, np.int64)
        """The round in which each client last took part."""
        self._is_exact = np.zeros(num_clients, np.bool_)
        """Whether it then had the exact reference."""

    @property
    def sends_differences(self) -> bool:
        return self.encoding in DIFFERENCES

    def send(self, round: int, state: Tensor, clients: Iterable[int]) -> Broadcast:
        """The message for these clients; call :meth:`commit` when the round counts."""
        if self.encoding == "float32":
            return Broadcast(state)
        if not self.sends_differences:
            rounded, data = self._rounded(state, self.encoding)
            return Broadcast(rounded, self.encoding, data=data)
        if self.reference is None:
            rounded, data = self._rounded(state, SNAPSHOT)
            return Broadcast(rounded, SNAPSHOT, data=data)
        difference, data = self._rounded(state - self.reference, self.encoding)
        reference = self.reference + difference
        others: dict[int, Encoding] = {
            client: "float32" if self._last[client] == round - 1 else SNAPSHOT
            for client in clients
            if not (self._is_exact[client] and self._last[client] == round - 1)
        }
        if SNAPSHOT not in others.values():
            return Broadcast(reference, self.encoding, others, data=data)
        snapshot, small = self._rounded(reference, SNAPSHOT)
        return Broadcast(reference, self.encoding, others, snapshot, data, small)

    def commit(self, round: int, sent: Broadcast, clients: Iterable[int]) -> None:
        """Note what these clients now have: they trained and kept their state of this round."""
        if self.sends_differences:
            self.reference = sent.state
            for client in clients:
                self._last[client] = round
                self._is_exact[client] = sent.state_of(client) is sent.state

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint; :meth:`restore` reads it."""
        if self.reference is None:
            return {}
        return {
            "messages.reference": self.reference,
            "messages.last": torch.from_numpy(self._last.copy()),
            "messages.exact": torch.from_numpy(self._is_exact.copy()),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if "messages.reference" in tensors:
            self.reference = tensors["messages.reference"].clone()
            self._last = tensors["messages.last"].numpy().copy()
            self._is_exact = tensors["messages.exact"].numpy().copy()

    def _rounded(self, state: Tensor, encoding: Encoding) -> tuple[Tensor, bytes]:
        """The values that clients decode, and the encoded bytes."""
        packing: Packing = state_packing(self.layers, encoding)
        data = packing.encode(state.numpy())
        return torch.from_numpy(packing.decode(data)), data
