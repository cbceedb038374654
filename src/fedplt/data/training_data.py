"""The data of a run, from tensors, arrays, tables, or a Dataset, whose items are checked."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fedplt.data.dataset_samples import Collate, DatasetSamples
from fedplt.data.samples import (
    LABELS,
    Samples,
    TensorSamples,
    named_inputs,
    plain_targets,
    single_precision,
    text_error,
)
from fedplt.errors import DataError
from fedplt.text import brief


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Data of a run: training, validation (after rounds) and test (at the end).

    Each is ``(inputs, targets)`` of tensors, arrays, lists or pandas objects, or a Dataset.
    ``collate`` turns a list of a Dataset's items into a batch, like ``DataCollatorWithPadding``.
    """

    train: Samples
    validation: Samples
    test: Samples | None = None
    collate: Collate | None = None

    __repr__ = brief

    def __post_init__(self) -> None:
        for name, part in (("train", "training"), ("validation",) * 2, ("test",) * 2):
            given = getattr(self, name)
            if given is None and name == "test":
                continue
            try:
                object.__setattr__(self, name, as_samples(given, self.collate))
            except DataError as error:
                raise DataError(f"{part} data: {error}") from error

    def with_channels_last(self) -> TrainingData:
        train, validation = self.train.with_channels_last(), self.validation.with_channels_last()
        is_shared = self.test is self.validation
        test = validation if is_shared else self.test and self.test.with_channels_last()
        return TrainingData(train, validation, test)


def as_samples(data: Any, collate: Collate | None = None) -> Samples:
    """Accept ``(inputs, targets)`` as tensors, arrays, lists or tables, a Dataset, or Samples."""
    if hasattr(data, "batch") and hasattr(data, "arranged"):
        return cast(Samples, data)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return _tensor_samples(*data.tensors)
    if isinstance(data, Mapping) and LABELS in data:
        return _tensor_samples(data, data[LABELS])
    if isinstance(data, (tuple, list)) and len(data) == 2:
        if not _is_pair(data[0]):
            return _tensor_samples(*data)
        if all(hasattr(values, "shape") for values in (*data[0], data[1])):
            return _tensor_samples(tuple(data[0]), data[1])  # such as ((users, items), ratings)
    if isinstance(data, (tuple, list)) and data and isinstance(data[0], (Tensor, np.ndarray)):
        raise DataError(
            f"data is a {type(data).__name__} of {len(data)} tensors or arrays; give two, (inputs, "
            "targets); several inputs as ((x1, x2), targets) or ({'a': x1, 'b': x2}, targets)."
        )
    if isinstance(data, IterableDataset):
        raise DataError(
            "data is an IterableDataset, without a length and items by number. Give a Dataset with "
            "__len__ and __getitem__, or list(dataset) if it fits into memory."
        )
    if isinstance(data, DataLoader):
        raise DataError("data is a DataLoader; give its dataset: loader.dataset.")
    if hasattr(data, "to_numpy") or isinstance(data, (Tensor, np.ndarray, Mapping, str)):
        raise DataError(
            f"data is a {type(data).__name__} alone; give (inputs, targets), such as "
            "(table[['width', 'height']], table['kind'])."
        )
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return DatasetSamples(data, collate)
    raise DataError(
        f"data is a {type(data).__name__}; give (inputs, targets) as tensors, arrays or tables, or "
        "a Dataset with __len__ and __getitem__."
    )


def _tensor_samples(inputs: Any, targets: Any) -> TensorSamples:
    given = [_tensor(name, values) for name, values in named_inputs(inputs)]
    labels = _tensor("targets", targets)
    if any(tensor.dtype is torch.float64 for tensor in (*given, labels)):
        warnings.warn("the data is float64; it is converted to float32.", stacklevel=2)
    found, labels = list(map(single_precision, given)), plain_targets(labels)
    if not isinstance(inputs, Mapping):
        return TensorSamples(tuple(found) if isinstance(inputs, tuple) else found[0], labels)
    named = dict(zip(map(str, inputs), found, strict=True))
    return TensorSamples({**named, **({LABELS: labels} if LABELS in named else {})}, labels)


def _tensor(name: str, values: Any) -> Tensor:
    """A tensor from a tensor, an array, a list, or a pandas object."""
    if values is None:
        raise DataError(f"the {name} are None; give numbers.")
    if isinstance(values, Tensor):
        return values
    values = values.to_numpy() if hasattr(values, "to_numpy") else values
    try:
        if isinstance(values, (list, tuple)) and values and isinstance(values[0], Tensor):
            return torch.stack(list(values))
        array = np.asarray(values)
    except (ValueError, RuntimeError) as error:
        raise DataError(f"the {name} have different lengths; pad them to one.") from error
    if array.dtype.kind in "USO":
        array = _numbers(name, array)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if array.dtype.kind not in "biuf":
        raise DataError(f"the {name} have type {array.dtype}; give numbers.")
    # A copy: torch warns of read-only arrays.
    return torch.from_numpy(np.array(array))


def _numbers(name: str, array: Any) -> Any:
    """Convert arrays of objects, such as from columns of different types; refuse text."""
    flat = array.ravel().tolist()
    text = [value for value in flat if isinstance(value, str)]
    if text:
        raise text_error(name.split(maxsplit=1)[0], text)
    try:
        return array.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"the {name} cannot be converted to numbers: {error}.") from error


def _is_pair(item: Any) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2
