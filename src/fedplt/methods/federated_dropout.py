"""Federated dropout: one random sub-model per round, shared by all clients of a width rate.

In every round, a rate s keeps ceil(K s) units of a hidden layer with K units, drawn without
replacement. Clients of the same rate hold the same units, so that their updates cover one another.
Caldas et al., "Expanding the Reach of Federated Learning by Reducing Client Resource Requirements",
2018.

Where we deviate: the paper has one rate for all clients and compresses messages too. Here each
client has the rate that is closest to its ratio, and the draws of different rates are independent.
The scaler is HeteroFL's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedplt.methods.heterofl import HeteroFL
from fedplt.planning import Units, kept_units
from fedplt.seeds import generator


@dataclass(frozen=True, kw_only=True)
class FederatedDropout(HeteroFL):
    """Holds the rows and columns that were drawn for its rate, trains all it holds."""

    name: ClassVar[str] = "federated-dropout"
    holds: ClassVar[str] = "random units of every hidden layer, one draw a round for each rate"

    def select_units(
        self, width: int, rate: float, *, space: int, seed: int, round: int, client: int
    ) -> Units:
        random = generator(seed, f"federated-dropout {space} {rate!r}", round=round)
        return np.sort(random.permutation(width)[: kept_units(width, rate)])
