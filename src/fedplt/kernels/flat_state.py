"""The model's tensors as one flat array, laid out as :mod:`fedplt.planning.layers` describes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedplt.errors import CutError
from fedplt.planning import FlatIndex, Layers, PlacedTensor, dotted


def bind_state(model: nn.Module, layers: Layers) -> Tensor:
    """Make all tensors of the layers views of one flat array, and return it.

    Writing to the array then changes the model, and training the model changes the array. All
    tensors need the same type.
    """
    tensors = [
        getattr(model.get_submodule(placed.tensor.module), placed.tensor.key)
        for placed in layers.placed
    ]
    names = [placed.tensor.name for placed in layers.placed]
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    _refuse_views(model, dict(zip(addresses, names, strict=True)))
    first = next(iter(tensors), torch.empty(0))
    for placed, tensor in zip(layers.placed, tensors, strict=True):
        if tensor.dtype != first.dtype:
            raise CutError(
                f"{placed.tensor.name} is {tensor.dtype} and {layers.placed[0].tensor.name} is "
                f"{first.dtype}; the flat state has one type. Convert the model to one "
                "(model.float()), or leave some out of the cut (never)."
            )
    flat = torch.empty(layers.state_size, dtype=first.dtype, device=first.device)
    for placed, tensor in zip(layers.placed, tensors, strict=True):
        view = _view(flat, placed)
        view.copy_(tensor.detach())
        tensor.data = view
    return flat


def _refuse_views(model: nn.Module, tensors: dict[int, str]) -> None:
    """Refuse attributes that are views of a bound tensor: they would keep the old values."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
                continue
            if value.layout is not torch.strided or value.is_nested:
                continue
            # Spectral normalization computes such an attribute again in every forward pass.
            is_computed = f"{key}_orig" in module._parameters
            if not is_computed and value.untyped_storage().data_ptr() in tensors:
                raise CutError(
                    f"{dotted(name, key)} is a view of "
                    f"{tensors[value.untyped_storage().data_ptr()]}, made before training: the "
                    "model would go on computing with old values. Make the view in forward."
                )


def read_state(model: nn.Module, layers: Layers) -> Tensor:
    """A flat copy of all tensors of the layers."""
    tensors = model.state_dict()
    flat = torch.empty(layers.state_size)
    for placed in layers.placed:
        _view(flat, placed).copy_(tensors[placed.tensor.name])
    return flat


def check_dtypes(model: nn.Module, layers: Layers) -> None:
    """Refuse tensors that are not float32, the type of the flat state."""
    tensors = model.state_dict(keep_vars=True)
    for placed in layers.placed:
        name = placed.tensor.name
        if tensors[name].dtype != torch.float32:
            raise CutError(
                f"{name} is {tensors[name].dtype}, and the flat state of a model is float32."
            )


def named_tensors(layers: Layers, flat: Tensor) -> dict[str, Tensor]:
    """The flat state as ordinary named tensors (copies), as in ``model.state_dict()``."""
    return {
        placed.tensor.name: _view(flat, placed).contiguous().clone() for placed in layers.placed
    }


def parts_of(flat: Tensor, index: FlatIndex) -> Iterator[Tensor]:
    """The indexed values, part by part; views if the index has segments."""
    if index.positions is not None:
        yield flat[torch.from_numpy(index.positions).to(flat.device)]
    else:
        for start, stop in index.segments:
            yield flat[start:stop]


def take(flat: Tensor, index: FlatIndex, out: Tensor | None = None) -> Tensor:
    """A copy of the indexed values."""
    if index.positions is not None:
        positions = torch.from_numpy(index.positions).to(flat.device)
        return torch.index_select(flat, 0, positions, out=out)
    parts = list(parts_of(flat, index))
    return torch.cat(parts, out=out) if parts else flat.new_empty(0)


def put(flat: Tensor, index: FlatIndex, values: Tensor) -> None:
    """Write the indexed values."""
    if index.positions is not None:
        flat[torch.from_numpy(index.positions).to(flat.device)] = values
        return
    done = 0
    for part in parts_of(flat, index):
        part.copy_(values[done : done + len(part)])
        done += len(part)


def add_at(flat: Tensor, index: FlatIndex, values: Tensor, weight: float) -> None:
    """Add ``weight * values`` to the indexed values."""
    if index.positions is not None:
        flat.index_add_(0, torch.from_numpy(index.positions), values, alpha=weight)
        return
    done = 0
    for part in parts_of(flat, index):
        part.add_(values[done : done + len(part)], alpha=weight)
        done += len(part)


def buffer_positions(layers: Layers) -> Tensor:
    """Positions of the running statistics in the flat state."""
    parts = [
        torch.arange(placed.offset, placed.stop)
        for placed in layers.placed
        if placed.tensor.is_buffer
    ]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def _view(flat: Tensor, placed: PlacedTensor) -> Tensor:
    """One tensor's segment of the flat state, in the tensor's own shape."""
    shape, axis = placed.tensor.shape, placed.tensor.axis
    segment = flat[placed.offset : placed.stop]
    if not shape:
        return segment[0]
    return segment.view([shape[axis], *shape[:axis], *shape[axis + 1 :]]).movedim(0, axis)
