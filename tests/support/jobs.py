"""Small jobs: three blobs of points, a small network, five unequal clients."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.configuration.config_file import parse_config
from fedplt.data.samples import TensorSamples
from fedplt.data.training_data import TrainingData
from fedplt.federation.job import Job, make_job
from fedplt.federation.run_folder.folder import RunFolder

RATIOS = [1.0, 0.5, 0.5, 0.2, 0.2]


def small_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def blobs(number: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three well separated classes in six dimensions."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 3
    centers = 2 * torch.eye(6)[:3]
    return centers[labels] + 0.3 * torch.randn(number, 6, generator=random), labels


def blob_data() -> TrainingData:
    return TrainingData(
        TensorSamples(*blobs(300)), TensorSamples(*blobs(90, 1)), TensorSamples(*blobs(90, 2))
    )


def blob_job(ratios: list[float] | None = None, model: Any = None, **settings: Any) -> Job:
    """Five unequal clients on three blobs; seconds to run, learns to near 100 %."""
    ratios = ratios or RATIOS
    values = {
        "rounds": 4,
        "clients": {"num_clients": len(ratios)},
        "data": {"name": "blobs", "alpha": 0.5},
        "training": {"learning_rate": 0.1, "batch_size": 16},
        "engine": {"workers": 1, "check": False},
    }
    for key, value in settings.items():
        values[key] = {**values[key], **value} if isinstance(values.get(key), dict) else value
    torch.manual_seed(0)
    return make_job(parse_config(values), model or small_model(), blob_data(), ratios=ratios)


def created(path, job, *, overwrite=False):
    """The folder of a new run, on disk and locked."""
    folder = RunFolder(path, secrets.token_hex(8))
    folder.begin(job, overwrite=overwrite)
    return folder


def run_folder(path: Path, job: Job) -> RunFolder:
    """A new run's folder; nobody else wants to write to it."""
    folder = created(path, job)
    folder.unlock()
    return folder
