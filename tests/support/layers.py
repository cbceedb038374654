"""Layers as plain values, without torch."""

from __future__ import annotations

from itertools import pairwise

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
