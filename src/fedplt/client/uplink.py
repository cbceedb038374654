r"""Encode a client's update, and keep what the encoding loses for its next upload.

.. math:: \text{upload } Q(U_k + e_k), \qquad e_k \leftarrow U_k + e_k - Q(U_k + e_k)

:math:`e_k` stays on the client: one value per value of the model, 0 where it never trained. An
upload changes only those of its slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedplt.encoding import Encoding, Values
from fedplt.kernels import put, take
from fedplt.planning import Assignment, update_packing


class Uplink:
    """The residuals :math:`e_k` of one client, or of all clients of a simulation."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.residuals: dict[int, Tensor] = {}
        self._next: dict[int, Tensor] = {}

    def send(self, client: int, values: Values, assignment: Assignment) -> tuple[bytes, Values]:
        """The bytes of an update, and the values that the server reads from them.

        The residual changes when :meth:`keep` is called: the server has the update.
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
        prefix = "residual."
        self.residuals = {
            int(name.removeprefix(prefix)): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        self._next = {}
