"""A torch Dataset as training data: items are fetched as needed, collated and checked."""

from __future__ import annotations

import sysconfig
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from fedplt.data.samples import (
    LABELS,
    as_labels,
    map_tensors,
    plain_targets,
    single_precision,
    tensors_in,
    text_error,
)
from fedplt.errors import DataError

Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of items: ``(inputs, targets)``, or a dictionary with ``labels``."""
CheckTargets = Callable[[Tensor, Sequence[int]], None]
"""Refuses wrong targets of a batch; called with the targets and the numbers of the examples."""


@dataclass(frozen=True, eq=False)
class DatasetSamples:
    """A map-style Dataset; items are fetched as needed.

    Items are ``(input, target)``, or dictionaries of inputs with the target as ``labels`` or
    ``label``, as in Hugging Face's ``datasets``. ``collate`` turns a list of items, of any kind,
    into a batch of one of these forms.
    """

    dataset: Any
    collate: Collate | None = None
    order: NDArray[np.int64] | None = None
    device: str = "cpu"
    channels_last: bool = False
    check: CheckTargets | None = None
    _labels: list[NDArray[np.int64]] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.dataset) if self.order is None else len(self.order)

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        chosen = indices.tolist() if self.order is None else self.order[indices.numpy()].tolist()
        inputs, targets = self._fetched(chosen)
        _refuse_text(targets, chosen)
        if isinstance(targets, Tensor):
            targets = plain_targets(targets)
            if isinstance(inputs, Mapping) and LABELS in inputs:
                inputs = {**inputs, LABELS: targets}
        inputs = map_tensors(inputs, single_precision)
        _refuse_not_finite((inputs, targets), chosen)
        if self.check is not None and isinstance(targets, Tensor):
            self.check(targets, chosen)
        if self.channels_last and isinstance(inputs, Tensor) and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        inputs, targets = map_tensors((inputs, targets), lambda tensor: tensor.to(self.device))
        return inputs, targets

    def labels(self) -> NDArray[np.int64]:
        if not self._labels:
            numbers = range(len(self.dataset))
            if self.collate is None:
                targets = _collated([_pair(self._item(i), i)[1] for i in numbers], numbers)
            else:
                each = [self._fetched([index])[1] for index in numbers]
                alike = all(isinstance(part, Tensor) and part.ndim == 1 for part in each)
                targets = torch.cat(each) if alike else each[0]
            _refuse_text(targets, numbers)
            _refuse_not_finite(targets, numbers)
            self._labels.append(as_labels(targets))
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

    def _fetched(self, chosen: Sequence[int]) -> tuple[Any, Any]:
        """Inputs and targets of a batch, as the Dataset has them."""
        items = [self._item(index) for index in chosen]
        if self.collate is None:
            pairs = [_pair(item, index) for item, index in zip(items, chosen, strict=True)]
            inputs, targets = _collated(pairs, chosen)
            return inputs, targets
        with _user_code(f"collate fails for items such as number {chosen[0]} of the Dataset"):
            batch = self.collate(items)
        return _pair(batch, chosen[0], "the batch that collate makes of item")

    def _item(self, index: int) -> Any:
        with _user_code(f"item {index} of the Dataset cannot be fetched"):
            return self.dataset[index]


@contextmanager
def _user_code(problem: str) -> Iterator[None]:
    """Errors name the line of the user's code that raised; it may raise anything."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        others = ("site-packages", "dist-packages", sysconfig.get_paths()["stdlib"], __file__)
        own = [frame for frame in frames if not any(each in frame.filename for each in others)]
        place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        raise DataError(f"{problem}: {type(error).__name__}: {error}{place}.") from error


def _pair(item: Any, index: int, what: str = "item") -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        found = {LABELS if key == "label" else key: _as_array(item[key]) for key in item}
        if LABELS not in found:
            raise DataError(
                f"{what} {index} of the Dataset is a dictionary with "
                f"{', '.join(map(repr, item))}; the target must have the key {LABELS!r}."
            )
        # Leave out text beside numbers, such as text before its tokenization.
        inputs = {k: v for k, v in found.items() if k == LABELS or not _is_text(v)}
        return inputs, found[LABELS]
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 2:
        return item[0], item[1]
    raise DataError(
        f"{what} {index} of the Dataset is of type {type(item).__name__}"
        f"{f' with {len(item)} parts' if isinstance(item, (tuple, list)) else ''}; items must be "
        f"(input, target) pairs, two inputs as ((a, b), target), or dictionaries with {LABELS!r}."
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind == "U")


def _as_array(value: Any) -> Any:
    """A list of numbers as an array; torch would collate it column by column."""
    if not isinstance(value, list) or not value:
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return value
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _collated(items: Sequence[Any], numbers: Sequence[int]) -> Any:
    """One batch of these items; an error names the first one that differs."""
    try:
        return default_collate(list(items))
    except Exception as error:  # torch raises one of many kinds
        first = _kind(items[0])
        other = next((i for i, item in enumerate(items) if _kind(item) != first), None)
        if other is not None:
            raise DataError(
                f"items {numbers[0]} and {numbers[other]} of the Dataset are not alike: {first} "
                f"and {_kind(items[other])}. All need the same types and shapes; for items of "
                "different lengths, give collate=, a function from a list of items to a batch."
            ) from error
        raise DataError(
            f"items of the Dataset, such as number {numbers[0]}, are {first}; they must be "
            "tensors, arrays or numbers."
        ) from error


def _kind(item: Any) -> str:
    """An item's types and shapes, for messages."""
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{key!r}: {_kind(value)}" for key, value in item.items()) + "}"
    if isinstance(item, (tuple, list)):
        return "(" + ", ".join(map(_kind, item)) + ")"
    if isinstance(item, (Tensor, np.ndarray)):
        return f"a tensor of shape {tuple(item.shape)}"
    if isinstance(item, str):
        return f"the text {item[:20]!r}"
    if item is None or isinstance(item, (int, float, np.number, np.bool_)):
        return "None" if item is None else "a number"
    return f"a {type(item).__name__}"


def _refuse_text(targets: Any, numbers: Sequence[int]) -> None:
    """Refuse targets that are text: torch collates them to a list."""
    if isinstance(targets, (list, tuple)) and targets and isinstance(targets[0], str):
        raise DataError(f"item {numbers[0]} of the Dataset: {text_error('targets', targets)}")


def _refuse_not_finite(batch: Any, numbers: Sequence[int]) -> None:
    """Refuse NaN and infinite values; ``numbers`` are the items' indices in the Dataset."""
    for tensor in tensors_in(batch):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            row = int((~torch.isfinite(tensor)).nonzero()[0, 0])
            raise DataError(
                f"item {numbers[row]} of the Dataset has NaN or infinite values. Remove such "
                "examples, or fill their gaps."
            )
