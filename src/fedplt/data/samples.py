"""Examples to train and evaluate on: tensors in memory, or any ``torch.utils.data.Dataset``.

Inputs are a tensor or a dictionary of tensors, which a model takes by name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from fedplt.errors import DataError

Inputs = Tensor | Mapping[str, Tensor]
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

    inputs: Inputs
    targets: Tensor
    channels_last: bool = False
    """Inputs are kept as (examples, height, width, channels)."""

    def __post_init__(self) -> None:
        for name, tensor in (*_named(self.inputs), ("targets", self.targets)):
            if tensor.is_nested or tensor.layout is not torch.strided:
                raise DataError(
                    f"the {name} are a {'nested' if tensor.is_nested else 'sparse'} tensor; give a "
                    "dense one (padded), or a Dataset with a collate of its own."
                )
            if not tensor.ndim:
                raise DataError(f"the {name} are a single number; give one per example.")
        for name, tensor in _named(self.inputs):
            if len(tensor) != len(self.targets):
                raise DataError(
                    f"there are {len(tensor)} {name} and {len(self.targets)} targets; "
                    "give one target per input."
                )

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor) -> tuple[Any, Tensor]:
        indices = indices.to(self.targets.device)
        inputs = _each(self.inputs, lambda tensor: tensor.index_select(0, indices))
        if self.channels_last:
            inputs = inputs.permute(0, 3, 1, 2)
        return inputs, self.targets.index_select(0, indices)

    def to(self, device: torch.device) -> TensorSamples:
        inputs = _each(self.inputs, lambda tensor: tensor.to(device))
        return replace(self, inputs=inputs, targets=self.targets.to(device))

    def with_channels_last(self) -> TensorSamples:
        if self.channels_last or not isinstance(self.inputs, Tensor) or self.inputs.ndim != 4:
            return self
        return replace(
            self, inputs=self.inputs.permute(0, 2, 3, 1).contiguous(), channels_last=True
        )

    def labels(self) -> NDArray[np.int64]:
        return _as_labels(self.targets)

    def checksum(self, start: int) -> int:
        for _, tensor in (("targets", self.targets), *_named(self.inputs)):
            start = zlib.crc32(tensor.cpu().contiguous().numpy().data, start)
        return start

    def arranged(self, order: NDArray[np.int64]) -> TensorSamples:
        if np.array_equal(order, np.arange(len(self))):
            return self
        chosen = torch.from_numpy(order)
        inputs = _each(self.inputs, lambda tensor: tensor[chosen])
        return replace(self, inputs=inputs, targets=self.targets[chosen])


@dataclass(frozen=True, eq=False)
class DatasetSamples:
    """A map-style Dataset; items are fetched as needed.

    Items are ``(input, target)``, or dictionaries of inputs with their target as ``labels``.
    """

    dataset: Any
    order: NDArray[np.int64] | None = None
    device: str = "cpu"
    channels_last: bool = False
    _labels: list[NDArray[np.int64]] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.dataset) if self.order is None else len(self.order)

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        chosen = indices.tolist() if self.order is None else self.order[indices.numpy()].tolist()
        items = [_pair(self.dataset[index]) for index in chosen]
        inputs, targets = _converted(default_collate(items))
        refuse_not_finite((inputs, targets), chosen)
        if self.channels_last and isinstance(inputs, Tensor) and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return _moved(inputs, self.device), _moved(targets, self.device)

    def labels(self) -> NDArray[np.int64]:
        if not self._labels:
            targets = [_pair(self.dataset[index])[1] for index in range(len(self.dataset))]
            self._labels.append(_as_labels(_target_tensor(targets)))
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


def refuse_not_finite(batch: Any, numbers: Sequence[int]) -> None:
    """Refuse NaN and infinite values; ``numbers`` are those of the examples in the Dataset."""
    for tensor in _tensors(batch):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = ~torch.isfinite(tensor).flatten(1).all(1) if tensor.ndim > 1 else None
            row = int((~torch.isfinite(tensor) if bad is None else bad).nonzero()[0, 0])
            raise DataError(
                f"item {numbers[row]} of the Dataset has NaN or infinite values. Remove such "
                "examples, or fill their gaps."
            )


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    return [t for part in batch for t in _tensors(part)] if isinstance(batch, (list, tuple)) else []


def _pair(item: Any) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        if LABELS in item:
            return dict(item), item[LABELS]
        raise DataError(
            f"items of the Dataset are dictionaries with {', '.join(map(repr, item))}; the target "
            f"must be there as {LABELS!r}."
        )
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 2:
        return item[0], item[1]
    raise DataError(
        f"items of the Dataset are of type {type(item).__name__}; they must be (input, target) "
        f"pairs, or dictionaries with {LABELS!r}."
    )


def _converted(batch: list[Any]) -> tuple[Any, Any]:
    """Single precision, and whole numbers as labels."""
    inputs, targets = batch
    if isinstance(targets, (list, tuple)) and targets and isinstance(targets[0], str):
        raise text_error("targets", targets)
    if isinstance(targets, Tensor):
        targets = plain_targets(targets)
        if isinstance(inputs, Mapping) and LABELS in inputs:
            inputs = {**inputs, LABELS: targets}
    return _each_float(inputs), targets


def _each_float(inputs: Any) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.float() if inputs.dtype is torch.float64 else inputs
    if isinstance(inputs, Mapping):
        return {key: _each_float(value) for key, value in inputs.items()}
    return [_each_float(part) for part in inputs] if isinstance(inputs, (list, tuple)) else inputs


def plain_targets(targets: Tensor) -> Tensor:
    """Whole numbers as int64, all others in single precision."""
    if targets.dtype is torch.float64:
        return targets.float()
    if targets.dtype is torch.bool and targets.ndim > 1:
        return targets.float()
    return targets if targets.is_floating_point() else targets.long()


def text_error(name: str, values: Sequence[Any]) -> DataError:
    shown = ", ".join(repr(str(value)) for value in list(dict.fromkeys(map(str, values)))[:3])
    do = (
        "number them: classes, labels = numpy.unique(labels, return_inverse=True)."
        if name == "targets"
        else "turn them into numbers first."
    )
    return DataError(f"the {name} are text ({shown}, ...); {do}")


def _target_tensor(targets: Sequence[Any]) -> Tensor:
    if targets and isinstance(targets[0], str):
        raise text_error("targets", targets)
    return plain_targets(torch.as_tensor(np.array(targets)))


def _named(inputs: Inputs) -> list[tuple[str, Tensor]]:
    if isinstance(inputs, Tensor):
        return [("inputs", inputs)]
    return [(f"inputs {name!r}", tensor) for name, tensor in inputs.items()]


def _each(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(inputs, Tensor):
        return change(inputs)
    return {name: change(tensor) for name, tensor in inputs.items()}


def _moved(batch: Any, device: str) -> Any:
    """A collated batch on a device: tensors, or lists and dictionaries of them."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _moved(value, device) for key, value in batch.items()}
    return [_moved(value, device) for value in batch] if isinstance(batch, list) else batch


def _as_labels(targets: Tensor) -> NDArray[np.int64]:
    if targets.ndim != 1 or targets.is_floating_point():
        raise DataError(
            f"targets have shape {tuple(targets.shape)} and type {targets.dtype}; this split or "
            "evaluation needs one integer label per example. Use an iid or a given split instead."
        )
    return np.asarray(targets.cpu().numpy(), dtype=np.int64)
