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

    def all_segments(self) -> Segments:
        """The places as segments (perhaps very many).

        >>> Places(positions=np.array([0, 1, 2, 7])).all_segments()
        [(0, 3), (7, 8)]
        """
        where = self.positions
        if where is None:
            return self.segments
        if not len(where):
            return []
        ends = np.flatnonzero(np.diff(where) != 1)
        starts, stops = where[np.r_[0, ends + 1]], where[np.r_[ends, len(where) - 1]] + 1
        return list(zip(starts.tolist(), stops.tolist(), strict=True))
