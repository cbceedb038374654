"""FedBN: as FedAvg, but normalisation stays with each client.

Norm parameters and running statistics never leave the client and are kept for it from round to
round, also when it sits out. There is no global normalisation state, so accuracy is measured per
client. Every other method can do the same: ``method.local_norms = true``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedplt.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedBN(FedAvg):
    """Holds everything, and norms of its own; trains everything."""

    name: ClassVar[str] = "fedbn"
    holds: ClassVar[str] = "everything, and norms of its own"
    trains: ClassVar[str] = "everything, whatever its ratio; norms stay with it"

    local_norms: bool = True
