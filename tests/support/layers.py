"""Layers as plain values, without torch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedplt.planning import FlatIndex
from fedplt.planning.layers import Layer, Layers, TensorSpec


def fcn_layers(num_inputs: int = 784) -> Layers:
    """The paper's FCN."""
    widths = [num_inputs, 512, 256, 128, 10]
    return Layers(
        tuple(
            Layer(
                f"fc{i}",
                (TensorSpec(f"fc{i}.weight", (b, a)), TensorSpec(f"fc{i}.bias", (b,))),
                b,
            )
            for i, (a, b) in enumerate(pairwise(widths), start=1)
        )
    )


def segments(places: FlatIndex) -> list[tuple[int, int]]:
    """FlatIndex as (start, stop) pairs, also if they are single positions."""
    where = places.positions
    if where is None:
        return list(places.segments)
    parts = np.split(where, np.flatnonzero(np.diff(where) != 1) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)]
