"""The model's tensors as one flat array (the layout that :mod:`fedplt.layers` describes)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedplt.layers import Layers


def bind_state(model: nn.Module, layers: Layers) -> Tensor:
    """Make all tensors of the layers views of one flat array, and return it.

    Writing to the array then changes the model, and training the model changes the array.
    """
    flat = torch.empty(layers.state_size)
    for offset, _, spec in layers.placed:
        name, _, key = spec.name.rpartition(".")
        module = model.get_submodule(name)
        moved = [spec.shape[spec.axis], *spec.shape[: spec.axis], *spec.shape[spec.axis + 1 :]]
        view = flat[offset : offset + spec.num_elements].view(moved).movedim(0, spec.axis)
        tensor = getattr(module, key)
        view.copy_(tensor.detach())
        tensor.data = view
    return flat


def named_tensors(layers: Layers, flat: Tensor) -> dict[str, Tensor]:
    """The flat state as ordinary named tensors (copies), as in ``model.state_dict()``."""
    result = {}
    for offset, _, spec in layers.placed:
        moved = [spec.shape[spec.axis], *spec.shape[: spec.axis], *spec.shape[spec.axis + 1 :]]
        view = flat[offset : offset + spec.num_elements].view(moved).movedim(0, spec.axis)
        result[spec.name] = view.contiguous().clone()
    return result
