"""Examples to train and evaluate on: the protocol, and tensors in memory.

Inputs are a tensor, a dictionary of tensors (arguments by name) or a tuple of tensors (arguments
in order).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.errors import DataError
from fedplt.text import brief

Inputs = Tensor | Mapping[str, Tensor] | tuple[Tensor, ...]
Augment = Callable[[Any, torch.Generator], Any]
"""Changes a batch of inputs for training; all randomness from the given generator."""
LABELS = "labels"
"""The key of the targets in items that are dictionaries."""


class Samples(Protocol):
    """Examples that can be counted and fetched by index."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of these examples."""

    def labels(self) -> NDArray[np.int64]:
        """One integer label per example; :class:`DataError` if targets are not labels."""

    def arranged(self, order: NDArray[np.int64]) -> Samples:
        """The same examples in another order (so that each client's are contiguous)."""

    def to(self, device: torch.device) -> Samples:
        """The same examples, with batches on this device."""

    def with_channels_last(self) -> Samples:
        """The same examples; images are stored channels last, which is faster for convolutions."""

    def checksum(self, start: int) -> int:
        """CRC-32 of the examples in order, continued from ``start``."""


FIRST_EXAMPLES = 8
"""Batch size for tracing and checking a model: one example may not use all of its parts."""


def first_examples(samples: Samples) -> tuple[Any, Any]:
    """Inputs and targets of a small batch, to try a model with."""
    return samples.batch(torch.arange(min(FIRST_EXAMPLES, len(samples))))


@dataclass(frozen=True, eq=False)
class TensorSamples:
    """Inputs and targets as tensors with examples along the first axis."""

    inputs: Inputs
    targets: Tensor
    channels_last: bool = False
    """Whether inputs are stored as (examples, height, width, channels)."""

    __repr__ = brief

    def __post_init__(self) -> None:
        for name, tensor in (*named_inputs(self.inputs), ("targets", self.targets)):
            if tensor.is_nested or tensor.layout is not torch.strided:
                raise DataError(
                    f"the {name} are a {'nested' if tensor.is_nested else 'sparse'} tensor; give a "
                    "dense one, with examples padded to one length."
                )
            if not tensor.ndim:
                raise DataError(f"the {name} are a single number; give one per example.")
        for name, tensor in named_inputs(self.inputs):
            if len(tensor) != len(self.targets):
                raise DataError(
                    f"there are {len(tensor)} {name} and {len(self.targets)} targets; "
                    "give one target per input."
                )

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor) -> tuple[Any, Tensor]:
        indices = indices.to(self.targets.device)
        inputs = map_tensors(self.inputs, lambda tensor: tensor.index_select(0, indices))
        if self.channels_last:
            inputs = inputs.permute(0, 3, 1, 2)
        return inputs, self.targets.index_select(0, indices)

    def to(self, device: torch.device) -> TensorSamples:
        inputs = map_tensors(self.inputs, lambda tensor: tensor.to(device))
        return replace(self, inputs=inputs, targets=self.targets.to(device))

    def with_channels_last(self) -> TensorSamples:
        if self.channels_last or not isinstance(self.inputs, Tensor) or self.inputs.ndim != 4:
            return self
        images = self.inputs.permute(0, 2, 3, 1).contiguous()
        return replace(self, inputs=images, channels_last=True)

    def labels(self) -> NDArray[np.int64]:
        return as_labels(self.targets)

    def checksum(self, start: int) -> int:
        for _, tensor in (("targets", self.targets), *named_inputs(self.inputs)):
            start = zlib.crc32(tensor.cpu().contiguous().numpy().data, start)
        return start

    def arranged(self, order: NDArray[np.int64]) -> TensorSamples:
        if np.array_equal(order, np.arange(len(self))):
            return self
        chosen = torch.from_numpy(order)
        inputs = map_tensors(self.inputs, lambda tensor: tensor[chosen])
        return replace(self, inputs=inputs, targets=self.targets[chosen])


def plain_targets(targets: Tensor) -> Tensor:
    """Whole numbers as int64, all others in single precision."""
    if targets.dtype is torch.float64 or (targets.dtype is torch.bool and targets.ndim > 1):
        return targets.float()
    return targets if targets.is_floating_point() else targets.long()


def text_error(name: str, values: Sequence[Any]) -> DataError:
    shown = ", ".join(map(repr, list(dict.fromkeys(map(str, values)))[:3]))
    do = "turn them into numbers first."
    if name == "targets":
        do = "number them: classes, labels = numpy.unique(labels, return_inverse=True)."
    return DataError(f"the {name} are text ({shown}, ...); {do}")


def named_inputs(inputs: Any) -> list[tuple[str, Any]]:
    """Input tensors with their names for messages."""
    if isinstance(inputs, Mapping):
        return [(f"inputs {name!r}", values) for name, values in inputs.items()]
    if isinstance(inputs, tuple):
        return [(f"inputs {number}", values) for number, values in enumerate(inputs)]
    return [("inputs", inputs)]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):  # such as an output of transformers
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value):
        yield from tensors_in(vars(value))


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Nested tuples, lists and mappings with changed tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [map_tensors(item, change) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def single_precision(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype is torch.float64 else tensor


def as_labels(targets: Any) -> NDArray[np.int64]:
    """Targets as integer labels, or :class:`DataError`."""
    found = f"are a {type(targets).__name__}"
    if isinstance(targets, Tensor):
        one_hot = targets.ndim == 2 and bool(((targets == 0) | (targets == 1)).all())
        if one_hot and bool((targets.sum(1) == 1).all()):
            targets = targets.argmax(1)
        if targets.ndim == 1 and not targets.is_floating_point():
            return np.asarray(targets.cpu().numpy(), dtype=np.int64)
        found = f"have shape {tuple(targets.shape)} and type {targets.dtype}"
    raise DataError(
        f"targets {found}; this split or evaluation needs one integer label per example. "
        "Use an iid or a given split instead."
    )
