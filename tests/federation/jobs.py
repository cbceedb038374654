"""Small jobs for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedplt.data.samples import TensorSamples, TrainingData
from fedplt.federation.folder import RunFolder
from fedplt.federation.job import Job, make_job
from fedplt.federation.load_config import parse_config
from tests.conftest import blobs, small_model

RATIOS = [1.0, 0.5, 0.5, 0.2, 0.2]


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
        "engine": {"workers": 1},
    }
    for key, value in settings.items():
        values[key] = {**values[key], **value} if isinstance(values.get(key), dict) else value
    torch.manual_seed(0)
    return make_job(parse_config(values), model or small_model(), blob_data(), ratios=ratios)


def run_folder(path: Path, job: Job) -> RunFolder:
    """A new run's folder; nobody else wants to write to it."""
    folder = RunFolder.create(path, job)
    folder.unlock()
    return folder
