"""Decode the published files of the built-in data sets into arrays, never from pickles.

A decoder takes a folder and returns ``None`` if its files are not there. Files that are larger than
the published ones, also after decompression, are refused.
"""

from __future__ import annotations

import gzip
import json
import math
import warnings
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedplt.errors import DataError

Arrays = dict[str, NDArray[np.uint8]]
"""``train_images`` (n, channels, height, width), ``train_labels`` (n,), and the same for test."""

IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
IDX_BYTES = 1 << 26
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
CIFAR_BATCH_BYTES = 10_000 * 3073
LABEL_FILES = ("train_lables.json", "test_lables.json")
LABELS_BYTES = 1 << 20


def decode_idx(folder: Path) -> Arrays | None:
    """MNIST-style IDX files, compressed or not."""
    found = {key: find(folder, f"{name}.gz", name) for key, name in IDX_FILES.items()}
    arrays: Arrays = {}
    for key, path in found.items():
        if path is None:
            return None
        arrays[key] = _idx(_read(path, IDX_BYTES), path)
    for key in ("train_images", "test_images"):
        arrays[key] = arrays[key][:, None]  # one channel
    return arrays


def _read(path: Path, most: int) -> bytes:
    """The content of a file, decompressed if its name ends in ``.gz``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = bytes(file.read(most + 1))
    except (OSError, EOFError, zlib.error) as error:
        kind = "complete gzip" if path.suffix == ".gz" else "readable"
        raise DataError(f"{path} is not a {kind} file ({error})") from error
    if len(data) > most:
        raise DataError(f"{path} holds more than {most:,} bytes: it is not the published file")
    return data


def _idx(data: bytes, path: Path) -> NDArray[np.uint8]:
    dimensions = data[3] if len(data) > 4 else 0
    header = 4 + 4 * dimensions
    shape = np.frombuffer(data[4 : min(header, len(data) // 4 * 4)], dtype=">i4").tolist()
    fits = data[:3] == b"\0\0\x08" and all(size > 0 for size in shape)
    if not fits or dimensions not in (1, 3) or len(data) != header + math.prod(shape):
        raise DataError(f"{path} is not a complete IDX file of bytes: delete it and fetch it again")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)


def decode_cifar_binary(folder: Path) -> Arrays | None:
    """The official binary version: 1 label byte and 3072 pixel bytes per example."""
    paths = [find(folder, f"{name}.bin") for name in BATCHES]
    if any(path is None for path in paths):
        return None
    batches = []
    for path in paths:
        assert path is not None
        data = np.frombuffer(_read(path, CIFAR_BATCH_BYTES), dtype=np.uint8)
        if data.size != CIFAR_BATCH_BYTES:
            raise DataError(f"{path} has {data.size} bytes, not 30,730,000: fetch it again")
        batches.append(data.reshape(10_000, 3073))
    train = np.concatenate(batches[:5])
    return _cifar(train[:, 1:], train[:, 0], batches[5][:, 1:], batches[5][:, 0])


def decode_cifar_png(folder: Path) -> Arrays | None:
    """The npm package: one image per row of a 1024-wide RGB picture, labels as JSON."""
    paths = [find(folder, f"{name}.png") for name in BATCHES]
    labels = [find(folder, name) for name in LABEL_FILES]
    if any(path is None for path in [*paths, *labels]):
        return None
    batches = [_pixels(path).transpose(0, 2, 1).reshape(10_000, 3072) for path in paths if path]
    train_labels, test_labels = (_labels(path) for path in labels if path)
    return _cifar(np.concatenate(batches[:5]), train_labels, batches[5], test_labels)


def _pixels(path: Path) -> NDArray[np.uint8]:
    """A picture of 10,000 rows, (10000, 1024, 3)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=["PNG"]) as picture:
                if picture.size != (1024, 10_000):  # before it is decompressed
                    raise ValueError(f"its size is {picture.size}, not (1024, 10000)")
                return np.asarray(picture.convert("RGB"))
    except (
        OSError, SyntaxError, ValueError, zlib.error,
        Image.DecompressionBombError, Image.DecompressionBombWarning,
    ) as error:  # fmt: skip
        raise DataError(f"{path} is not a complete PNG picture ({error})") from error


def _labels(path: Path) -> NDArray[np.uint8]:
    try:
        return np.array(json.loads(_read(path, LABELS_BYTES)), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"the labels in {path} are damaged") from error


def _cifar(
    train: NDArray[np.uint8],
    train_labels: NDArray[np.uint8],
    test: NDArray[np.uint8],
    test_labels: NDArray[np.uint8],
) -> Arrays:
    return {
        "train_images": np.ascontiguousarray(train).reshape(-1, 3, 32, 32),
        "train_labels": np.ascontiguousarray(train_labels),
        "test_images": np.ascontiguousarray(test).reshape(-1, 3, 32, 32),
        "test_labels": np.ascontiguousarray(test_labels),
    }


def find(folder: Path, *names: str) -> Path | None:
    """The first of these files in the folder or below it."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
        below = next(folder.rglob(name), None)
        if below is not None and below.is_file():
            return below
    return None
