"""Decode the published files of the built-in data sets into arrays. No pickle is ever read.

A decoder takes a folder and returns ``None`` where the files it knows are not there.
"""

from __future__ import annotations

import gzip
import json
import math
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
TRAIN_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


def decode_idx(folder: Path) -> Arrays | None:
    """MNIST-style IDX files, compressed or not."""
    found = {key: find(folder, f"{name}.gz", name) for key, name in IDX_FILES.items()}
    arrays: Arrays = {}
    for key, path in found.items():
        if path is None:
            return None
        data = path.read_bytes()
        try:
            data = gzip.decompress(data) if path.suffix == ".gz" else data
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is not a complete gzip file ({error})") from error
        arrays[key] = _idx(data, path)
    for key in ("train_images", "test_images"):
        arrays[key] = arrays[key][:, None]  # one channel
    return arrays


def _idx(data: bytes, path: Path) -> NDArray[np.uint8]:
    dimensions = data[3] if len(data) > 4 else 0
    header = 4 + 4 * dimensions
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, header, 4)]
    if data[:3] != b"\0\0\x08" or not shape or len(data) != header + math.prod(shape):
        raise DataError(f"{path} is not a complete IDX file of bytes: delete it and fetch it again")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)


def decode_cifar_binary(folder: Path) -> Arrays | None:
    """The official binary version: 1 label byte and 3072 pixel bytes per example."""
    paths = [find(folder, f"{name}.bin") for name in [*TRAIN_BATCHES, "test_batch"]]
    if any(path is None for path in paths):
        return None
    batches = []
    for path in paths:
        assert path is not None
        data = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        if data.size != 10_000 * 3073:
            raise DataError(f"{path} has {data.size} bytes, not 30,730,000: fetch it again")
        batches.append(data.reshape(10_000, 3073))
    train = np.concatenate(batches[:5])
    return _cifar(train[:, 1:], train[:, 0], batches[5][:, 1:], batches[5][:, 0])


def decode_cifar_png(folder: Path) -> Arrays | None:
    """The npm package: one image per row of a 1024-wide RGB picture, labels as JSON."""
    paths = [find(folder, f"{name}.png") for name in [*TRAIN_BATCHES, "test_batch"]]
    labels = [find(folder, name) for name in ("train_lables.json", "test_lables.json")]
    if any(path is None for path in [*paths, *labels]):
        return None
    batches = []
    for path in paths:
        assert path is not None
        try:
            with Image.open(path) as picture:
                pixels = np.asarray(picture.convert("RGB"))  # (10000, 1024, 3)
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{path} is not a complete PNG picture ({error})") from error
        if pixels.shape != (10_000, 1024, 3):
            raise DataError(f"{path} has shape {pixels.shape}, not (10000, 1024, 3)")
        batches.append(pixels.transpose(0, 2, 1).reshape(10_000, 3072))
    try:
        train_labels, test_labels = (
            np.array(json.loads(path.read_text()), dtype=np.uint8) for path in labels if path
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"the labels in {labels[0]} or {labels[1]} are damaged") from error
    return _cifar(np.concatenate(batches[:5]), train_labels, batches[5], test_labels)


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
