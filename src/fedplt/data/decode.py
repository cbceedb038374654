"""Decode the published files of the built-in data sets into arrays, never from pickles.

A decoder takes a folder and returns ``None`` if its files are not there. Files that are larger than
the published ones, also after decompression, are refused.
"""

from __future__ import annotations

import gzip
import json
import warnings
import zlib
from collections.abc import Iterable
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
    paths = _find(folder, IDX_FILES.values())
    if paths is None:
        return None
    arrays = {key: _idx(path) for key, path in zip(IDX_FILES, paths, strict=True)}
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


def _idx(path: Path) -> NDArray[np.uint8]:
    """An array of bytes, after the number and the sizes of its dimensions."""
    data = _read(path, IDX_BYTES)
    try:
        shape = np.frombuffer(data, dtype=">i4", count=data[3], offset=4).tolist()
        return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * data[3]).reshape(shape)
    except (ValueError, IndexError) as error:
        raise DataError(f"{path} is not a complete IDX file: fetch it again ({error})") from error


def decode_cifar_binary(folder: Path) -> Arrays | None:
    """The official binary version: 1 label byte and 3072 pixel bytes per example."""
    paths = _find(folder, (f"{name}.bin" for name in BATCHES))
    if paths is None:
        return None
    batches = [_read(path, CIFAR_BATCH_BYTES) for path in paths]
    for path, batch in zip(paths, batches, strict=True):
        if len(batch) != CIFAR_BATCH_BYTES:
            raise DataError(f"{path} has {len(batch)} bytes, not 30,730,000: fetch it again")
    rows = np.frombuffer(b"".join(batches), dtype=np.uint8).reshape(-1, 3073)
    return _cifar(rows[:, 1:], rows[:, 0])


def decode_cifar_png(folder: Path) -> Arrays | None:
    """The npm package: one image per row of a 1024-wide RGB picture, labels as JSON."""
    pictures = _find(folder, (f"{name}.png" for name in BATCHES))
    labels = _find(folder, LABEL_FILES)
    if pictures is None or labels is None:
        return None
    images = np.concatenate([_pixels(path).transpose(0, 2, 1) for path in pictures])
    return _cifar(images, np.concatenate([_labels(path) for path in labels]))


def _cifar(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Arrays:
    """The last of the six batches is for testing."""
    images = np.ascontiguousarray(images).reshape(-1, 3, 32, 32)
    labels = np.ascontiguousarray(labels)
    return {
        "train_images": images[:50_000],
        "train_labels": labels[:50_000],
        "test_images": images[50_000:],
        "test_labels": labels[50_000:],
    }


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
        return np.array(json.loads(_read(path, LABELS_BYTES)), dtype=np.uint8).reshape(-1)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"the labels in {path} are damaged") from error


def _find(folder: Path, names: Iterable[str]) -> list[Path] | None:
    """These files, in the folder or below it, compressed or not; None if one is missing."""
    found = []
    for name in names:
        for path in (p for n in (f"{name}.gz", name) for p in (folder / n, *folder.rglob(n))):
            if path.is_file():
                found.append(path)
                break
        else:
            return None
    return found
