"""FedRolex: HeteroFL with a window of units that moves by one every round.

All clients' windows start at the same unit, so small ones lie within large ones; in a layer of
width K a full cycle takes K rounds. Layers of equal width share the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedplt.methods.heterofl import HeteroFL
from fedplt.planning import Units, kept_units


@dataclass(frozen=True, kw_only=True)
class FedRolex(HeteroFL):
    """Holds a cyclic window of rows and columns, trains all it holds."""

    name: ClassVar[str] = "fedrolex"
    holds: ClassVar[str] = "a window of every hidden layer's units, moving by one every round"

    def select_units(
        self, width: int, rate: float, *, space: int, seed: int, round: int, client: int
    ) -> Units:
        return np.sort((round + np.arange(kept_units(width, rate))) % width)
