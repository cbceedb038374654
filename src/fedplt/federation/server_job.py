"""A job whose data is on the nodes: the server knows how many examples each client has, no more."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from fedplt.configuration import ON_NODES, RunConfig
from fedplt.errors import ConfigError, DataError
from fedplt.federation.job import Job, learning_rates_of, local_training_of
from fedplt.federation.model import find_code, model_from_config
from fedplt.federation.planning import plan_from_config
from fedplt.models import MODELS


class DataOnNodes:
    """Stands for examples that the server does not have."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def batch(self, indices: Any) -> NoReturn:
        self._refuse()

    def labels(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DataError(f"the data is on the nodes (data.name = {ON_NODES!r}).")

    def arranged(self, order: Any) -> DataOnNodes:
        return self

    def to(self, device: Any) -> DataOnNodes:
        return self

    def with_channels_last(self) -> DataOnNodes:
        return self

    def checksum(self, start: int) -> int:
        return zlib.crc32(b"on nodes", start)


def make_server_job(config: RunConfig, num_examples: Sequence[int]) -> Job:
    """The job of a server without data; ``num_examples`` of every client."""
    number = config.clients.num_clients
    if len(num_examples) != number or min(num_examples) < 1:
        raise ConfigError(
            f"{len(num_examples)} numbers for {number} clients; give each "
            "client's number of examples, at least 1.",
            key="clients.num_examples",
        )
    find_code(config)
    model = model_from_config(config)
    plan, devices = plan_from_config(
        config, model, example_input(config), num_examples=sum(num_examples)
    )
    task = config.task.task()
    nowhere = DataOnNodes(sum(num_examples))
    offsets: NDArray[np.int64] = np.concatenate([[0], np.cumsum(num_examples)]).astype(np.int64)
    return Job(
        config=config,
        model=model,
        plan=plan,
        samples=nowhere,
        offsets=offsets,
        validation=nowhere,
        test=None,
        training=local_training_of(config, task.loss),
        learning_rates=learning_rates_of(config, None, number),
        metric=task.metric,
        devices=devices,
    )


def example_input(config: RunConfig) -> torch.Tensor:
    """Zeros of the shape that the configuration says, or the built-in model's own example."""
    settings = config.model
    if settings.input_shape is not None:
        dtype = torch.int64 if settings.input_type == "integer" else torch.float32
        return torch.zeros(2, *settings.input_shape, dtype=dtype)
    spec = MODELS.get(settings.name)
    if spec is None or spec.example is None:
        raise ConfigError(
            "the server has no data to learn it from; give the shape of one "
            "example, such as input_shape = [3, 32, 32].",
            key="model.input_shape",
        )
    return spec.example()
