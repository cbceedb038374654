"""Sub-layers that no client trains, and advice to cover them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedplt.planning.layers import Layers


@dataclass(frozen=True)
class Uncovered:
    """Sub-layers of one layer that no client trains, and advice to cover them."""

    layer: str
    sublayers: range
    num_sublayers: int
    advice: str

    def __str__(self) -> str:
        first, last = self.sublayers.start, self.sublayers.stop - 1
        return (
            f"layer {self.layer}: nobody trains {len(self.sublayers)} of its "
            f"{self.num_sublayers} sub-layers ({first} to {last}). {self.advice}"
        )


def uncovered_sublayers(
    layers: Layers, coverage: Sequence[NDArray[np.int64]], num_clients: int
) -> tuple[Uncovered, ...]:
    """Find the layers with untrained sub-layers, from the number of clients per sub-layer."""
    result = []
    for layer, clients in zip(layers, coverage, strict=True):
        missing = int(np.count_nonzero(clients == 0))
        if missing:
            total = layer.num_sublayers
            advice = _advice(int(clients.sum()), total, num_clients)
            result.append(Uncovered(layer.name, range(total - missing, total), total, advice))
    return tuple(result)


def _advice(covered: int, total: int, num_clients: int) -> str:
    if covered == 0:
        return "Give some client a ratio that reaches it."
    more = -(-num_clients * total // covered) - num_clients
    return (
        f"About {more} more clients like these, or {total / covered:.1f} times "
        "this fraction of the layer per client, would cover it."
    )
