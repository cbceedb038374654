"""The layers of a model as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedplt.text import table

if TYPE_CHECKING:
    from fedplt.planning.layers import Layers


def layers_summary(layers: Layers) -> str:
    """What every layer is and how it is cut, then what is left out and why."""
    about = {entry.name: entry for entry in layers.about if entry.is_layer}
    rows = [
        [
            layer.name,
            about[layer.name].kind if layer.name in about else "",
            f"{layer.size:,}",
            f"{layer.num_sublayers:,}",
            about[layer.name].how if layer.name in about else "",
        ]
        for layer in layers
    ]
    parts = [
        f"{len(layers)} layers, {layers.size:,} parameters to train",
        table(["layer", "kind", "parameters", "sub-layers", "trained"], rows, left=(0, 1, 4)),
    ]
    left_out = [entry for entry in layers.about if not entry.is_layer]
    if left_out:
        rows = [[entry.name, entry.kind, f"{entry.size:,}", entry.how] for entry in left_out]
        parts += [
            f"left out: {sum(entry.size for entry in left_out):,} numbers",
            table(["tensor", "kind", "size", "why"], rows, left=(0, 1, 3)),
        ]
    if not layers.flow and not layers.products:
        parts.append(
            "Cut without an example input: norms were matched to the module registered before "
            "them, unused parameters are not noticed, and costs are not known."
        )
    return "\n\n".join(parts)
