"""Examples to train and evaluate on: tensors in memory, or any ``torch.utils.data.Dataset``."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from fedplt.errors import DataError

Augment = Callable[[Any, torch.Generator], Any]
"""Changes a batch of inputs for training; all randomness from the given generator."""


class Samples(Protocol):
    """Examples that can be counted and fetched by index."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of these examples."""

    def labels(self) -> NDArray[np.int64]:
        """One integer label per example; :class:`DataError` where targets are not labels."""

    def arranged(self, order: NDArray[np.int64]) -> Samples:
        """The same examples in another order (so that each client's are contiguous)."""

    def to(self, device: torch.device) -> Samples:
        """The same examples, with batches on this device."""

    def with_channels_last(self) -> Samples:
        """The same examples; images are stored channels last, which is faster for convolutions."""

    def checksum(self, start: int) -> int:
        """Changes (most likely) when the examples or their order change."""


FIRST_EXAMPLES = 8
"""A model is traced and checked with so many: one example may not use all of its parts."""


def first_examples(samples: Samples) -> tuple[Any, Any]:
    """Inputs and targets of a small batch, to try a model with."""
    return samples.batch(torch.arange(min(FIRST_EXAMPLES, len(samples))))


@dataclass(frozen=True, eq=False)
class TensorSamples:
    """Inputs and targets as tensors with examples along the first axis."""

    inputs: Tensor
    targets: Tensor
    channels_last: bool = False
    """Inputs are kept as (examples, height, width, channels)."""

    def __post_init__(self) -> None:
        for name, tensor in (("inputs", self.inputs), ("targets", self.targets)):
            if tensor.is_nested or tensor.layout is not torch.strided:
                raise DataError(
                    f"the {name} are a {'nested' if tensor.is_nested else 'sparse'} tensor; give a "
                    "dense one (padded), or a Dataset with a collate of its own."
                )
        if len(self.inputs) != len(self.targets):
            raise DataError(
                f"there are {len(self.inputs)} inputs and {len(self.targets)} targets; "
                "give one target per input."
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        indices = indices.to(self.inputs.device)
        inputs = self.inputs.index_select(0, indices)
        if self.channels_last:
            inputs = inputs.permute(0, 3, 1, 2)
        return inputs, self.targets.index_select(0, indices)

    def to(self, device: torch.device) -> TensorSamples:
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def with_channels_last(self) -> TensorSamples:
        if self.channels_last or self.inputs.ndim != 4:
            return self
        return replace(
            self, inputs=self.inputs.permute(0, 2, 3, 1).contiguous(), channels_last=True
        )

    def labels(self) -> NDArray[np.int64]:
        return _as_labels(self.targets)

    def checksum(self, start: int) -> int:
        targets = zlib.crc32(self.targets.cpu().contiguous().numpy().tobytes(), start)
        return zlib.crc32(self.inputs.cpu().contiguous().numpy().data, targets)

    def arranged(self, order: NDArray[np.int64]) -> TensorSamples:
        if np.array_equal(order, np.arange(len(self))):
            return self
        chosen = torch.from_numpy(order)
        return replace(self, inputs=self.inputs[chosen], targets=self.targets[chosen])


@dataclass(frozen=True, eq=False)
class DatasetSamples:
    """A map-style Dataset whose items are ``(input, target)``; items are fetched as needed."""

    dataset: Any
    order: NDArray[np.int64] | None = None
    device: str = "cpu"
    channels_last: bool = False
    _labels: list[NDArray[np.int64]] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.dataset) if self.order is None else len(self.order)

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        chosen = indices.tolist() if self.order is None else self.order[indices.numpy()].tolist()
        items = [self.dataset[index] for index in chosen]
        if not (isinstance(items[0], Sequence) and len(items[0]) == 2):
            raise DataError("items of a Dataset must be (input, target) pairs")
        inputs, targets = default_collate([tuple(item) for item in items])
        if self.channels_last and isinstance(inputs, Tensor) and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return _moved(inputs, self.device), _moved(targets, self.device)

    def labels(self) -> NDArray[np.int64]:
        if not self._labels:
            targets = [self.dataset[index][1] for index in range(len(self.dataset))]
            self._labels.append(_as_labels(torch.as_tensor(np.array(targets))))
        return self._labels[0] if self.order is None else self._labels[0][self.order]

    def checksum(self, start: int) -> int:
        order = np.arange(len(self)) if self.order is None else self.order
        return zlib.crc32(order.tobytes(), start)

    def arranged(self, order: NDArray[np.int64]) -> DatasetSamples:
        absolute = order if self.order is None else self.order[order]
        return replace(self, order=absolute)

    def to(self, device: torch.device) -> DatasetSamples:
        return replace(self, device=str(device))

    def with_channels_last(self) -> DatasetSamples:
        return replace(self, channels_last=True)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What a run trains on, what it evaluates in between, and what only at the end."""

    train: Samples
    validation: Samples
    test: Samples | None = None

    def with_channels_last(self) -> TrainingData:
        train, validation = self.train.with_channels_last(), self.validation.with_channels_last()
        if self.test is None or self.test is self.validation:
            return TrainingData(train, validation, None if self.test is None else validation)
        return TrainingData(train, validation, self.test.with_channels_last())


def as_samples(data: Any) -> Samples:
    """Accept ``(inputs, targets)`` as tensors or arrays, a Dataset, or Samples."""
    if isinstance(data, (TensorSamples, DatasetSamples)):
        return data
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return TensorSamples(*data.tensors)
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        if isinstance(data, (tuple, list)) and len(data) == 2 and not _is_pair(data[0]):
            return TensorSamples(torch.as_tensor(data[0]), torch.as_tensor(data[1]))
        return DatasetSamples(data)
    raise DataError(
        f"data is a {type(data).__name__}; give (inputs, targets) tensors or a Dataset with "
        "__len__ and __getitem__."
    )


def _moved(batch: Any, device: str) -> Any:
    """A collated batch on a device: tensors, or lists and dictionaries of them."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _moved(value, device) for key, value in batch.items()}
    return [_moved(value, device) for value in batch] if isinstance(batch, list) else batch


def _is_pair(item: Any) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2


def _as_labels(targets: Tensor) -> NDArray[np.int64]:
    if targets.ndim != 1 or targets.is_floating_point():
        raise DataError(
            f"targets have shape {tuple(targets.shape)} and type {targets.dtype}; this split or "
            "evaluation needs one integer label per example. Use an iid or a given split instead."
        )
    return np.asarray(targets.cpu().numpy(), dtype=np.int64)
