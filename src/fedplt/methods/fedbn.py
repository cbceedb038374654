"""FedBN: FedAvg, but each client keeps its own normalization layers.

Parameters and running statistics of normalization layers never leave the client, which stores them
between its rounds. There is no global normalization state, so accuracy is measured per client.
Other methods can do the same with ``method.local_norms = true``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedplt.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedBN(FedAvg):
    """Holds everything, and its own normalization layers; trains everything."""

    name: ClassVar[str] = "fedbn"
    holds: ClassVar[str] = "everything, and its own normalization layers"
    trains: ClassVar[str] = "everything, at any ratio; never uploads normalization layers"

    local_norms: bool = True
