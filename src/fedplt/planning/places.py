"""Places in a flat state: segments, or single positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Segments = Sequence[tuple[int, int]]
"""Ascending, disjoint ``(start, stop)`` pairs."""


@dataclass(frozen=True, eq=False)
class Places:
    """Ascending places in a flat state: segments, or positions if segments would be short.

    :mod:`fedplt.kernels.flat_state` reads and writes the values.
    """

    segments: Segments = ()
    positions: NDArray[np.int64] | None = None
    """Single positions, instead of segments."""

    @property
    def size(self) -> int:
        if self.positions is not None:
            return len(self.positions)
        return sum(stop - start for start, stop in self.segments)
