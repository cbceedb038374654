"""The model's tensors as one flat array (the layout that :mod:`fedplt.layers` describes)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedplt.layers import Layers


def bind_state(model: nn.Module, layers: Layers) -> Tensor:
    """Make all tensors of the layers views of one flat array, and return it.

    Writing to the array then changes the model, and training the model changes the array.
    """
    device = next(model.parameters()).device
    flat = torch.empty(layers.state_size, device=device)
    for offset, _, spec in layers.placed:
        name, _, key = spec.name.rpartition(".")
        module = model.get_submodule(name)
        moved = [spec.shape[spec.axis], *spec.shape[: spec.axis], *spec.shape[spec.axis + 1 :]]
        view = flat[offset : offset + spec.num_elements].view(moved).movedim(0, spec.axis)
        tensor = getattr(module, key)
        view.copy_(tensor.detach())
        tensor.data = view
    return flat


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; every module gets its own mode back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def named_tensors(layers: Layers, flat: Tensor) -> dict[str, Tensor]:
    """The flat state as ordinary named tensors (copies), as in ``model.state_dict()``."""
    result = {}
    for offset, _, spec in layers.placed:
        moved = [spec.shape[spec.axis], *spec.shape[: spec.axis], *spec.shape[spec.axis + 1 :]]
        view = flat[offset : offset + spec.num_elements].view(moved).movedim(0, spec.axis)
        result[spec.name] = view.contiguous().clone()
    return result
