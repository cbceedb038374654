"""The layers of a model as a printed table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedplt.text import counted, short_names, table

if TYPE_CHECKING:
    from fedplt.planning.layers import Layers


def layers_summary(layers: Layers) -> str:
    """What every layer is and how it is cut, then what is left out and why."""
    notes = {note.name: note for note in layers.about if note.is_layer}
    rows = [
        [
            name,
            notes[layer.name].kind if layer.name in notes else "",
            f"{layer.size:,}",
            f"{layer.num_sublayers:,}",
            notes[layer.name].how if layer.name in notes else "",
        ]
        for name, layer in zip(short_names([layer.name for layer in layers]), layers, strict=True)
    ]
    parts = [
        f"{counted(len(layers), 'layer')}, {counted(layers.size, 'parameter')} to train",
        table(["layer", "kind", "parameters", "sub-layers", "trained"], rows, left=(0, 1, 4)),
    ]
    left_out = [note for note in layers.about if not note.is_layer]
    if left_out:
        names = short_names([note.name for note in left_out])
        rows = [
            [name, note.kind, f"{note.size:,}", note.how]
            for name, note in zip(names, left_out, strict=True)
        ]
        parts += [
            f"left out: {sum(note.size for note in left_out):,} values",
            table(["tensor", "kind", "size", "why"], rows, left=(0, 1, 3)),
        ]
    if not layers.is_traced:
        parts.append(
            "Cut without an example input: normalization layers were matched to the module "
            "registered before them, unused parameters are not noticed, and costs are not known."
        )
    return "\n\n".join(parts)
