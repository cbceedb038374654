"""The jobs that all contestants do, as plain arrays in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NUM_CLIENTS = 50
BATCH_SIZE = 64
LEARNING_RATE = 0.01
HIDDEN = (512, 256, 128)
RESNET_CLIENTS = 8  # a sixth of a round of 50: ResNet-8 is slow
RESNET_STEPS = 16


@dataclass(frozen=True)
class Arrays:
    """Training and validation data; client k owns examples ``offsets[k]`` to ``offsets[k + 1]``."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    validation_inputs: NDArray[np.float32]
    validation_labels: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def num_inputs(self) -> int:
        return self.inputs.shape[1]


def write(folder: Path) -> None:
    """Fashion-MNIST over 50 clients by Dirichlet(0.2), and the same split with 3072 inputs."""
    from fedplt.data.catalog import load_data_set
    from fedplt.data.splits import split_dirichlet

    data = load_data_set("fashion-mnist")
    split = split_dirichlet(data.train.labels(), NUM_CLIENTS, alpha=0.2, min_examples=10, seed=1)
    train = data.train.arranged(split.order)
    labels, validation_labels = train.labels(), data.validation.labels()
    rest = {"labels": labels, "validation_labels": validation_labels, "offsets": split.offsets}
    np.savez(
        folder / "fcn-784.npz",
        inputs=train.inputs.flatten(1).numpy(),  # type: ignore[attr-defined]
        validation_inputs=data.validation.inputs.flatten(1).numpy(),  # type: ignore[attr-defined]
        **rest,
    )
    random = np.random.default_rng(1)
    np.savez(
        folder / "fcn-3072.npz",
        inputs=random.standard_normal((len(labels), 3072), dtype=np.float32),
        validation_inputs=random.standard_normal((len(validation_labels), 3072), dtype=np.float32),
        **rest,
    )

    _write_images(folder / "resnet8.npz", random)


def _write_images(path: Path, random: np.random.Generator) -> None:
    """Random images for ResNet-8: what is timed does not depend on what they show."""
    number = RESNET_CLIENTS * 256
    np.savez(
        path,
        inputs=random.standard_normal((number, 3072), dtype=np.float32),
        labels=random.integers(0, 10, number),
        validation_inputs=random.standard_normal((2000, 3072), dtype=np.float32),
        validation_labels=random.integers(0, 10, 2000),
        offsets=np.arange(RESNET_CLIENTS + 1) * 256,
    )


def read(path: Path) -> Arrays:
    with np.load(path) as stored:
        return Arrays(**{name: stored[name] for name in Arrays.__dataclass_fields__})
