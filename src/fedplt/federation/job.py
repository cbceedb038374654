"""A job: everything a run needs, in memory, made from a configuration or from Python objects."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedplt.client import LocalTraining, Loss, MemoryCounter, Metric, Task, classification_loss
from fedplt.configuration import FROM_PYTHON, ON_NODES, RunConfig
from fedplt.data import CATALOG, Augment, Progress, Samples, Split, TrainingData, first_examples
from fedplt.errors import ConfigError, DataError
from fedplt.federation.assigned_devices import ClientDevices, nominal_workload
from fedplt.federation.configured_plan import method_from_config, plan_from_config
from fedplt.federation.model_and_data import load_data, model_from_config, split_data
from fedplt.federation.preflight.data import parts_of
from fedplt.federation.preflight.trial_runs import (
    likes_channels_last,
    on_device,
    try_augment,
    try_data,
    try_model,
    try_optimizer,
    uncompiled,
)
from fedplt.fleet import ExactWorkload
from fedplt.imports import import_object
from fedplt.models import MODELS
from fedplt.planning import Allocation, Layers, LocalRecipe, Plan
from fedplt.server import claim_cap, update_weights
from fedplt.text import brief


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """A federation that is ready to run."""

    config: RunConfig
    model: nn.Module
    plan: Plan
    samples: Samples
    """Training examples, ordered by client."""
    offsets: NDArray[np.int64]
    """Client k owns examples ``offsets[k]`` to ``offsets[k + 1]``."""
    validation: Samples
    test: Samples | None = None
    training: LocalTraining
    metric: Metric
    devices: ClientDevices | None = None
    """With ``[fleet]``: the clients' device profiles."""

    __repr__ = brief

    @cached_property
    def data_fingerprint(self) -> str:
        """Digest of the split and the training data (of a Dataset: its size)."""
        checksum = zlib.crc32(np.ascontiguousarray(self.offsets).tobytes(), len(self.samples))
        return f"{self.samples.checksum(checksum):08x}"

    @property
    def recipe(self) -> LocalRecipe:
        return self.training.recipe

    @property
    def layers(self) -> Layers:
        return self.plan.layers

    @property
    def num_examples(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def weights(self) -> NDArray[np.int64]:
        """The weight of each client's update."""
        server = self.config.server
        return update_weights(
            self.num_examples, equal=server.weights == "equal", max_examples=server.max_examples
        )

    def examples(self, client: int) -> range:
        return range(int(self.offsets[client]), int(self.offsets[client + 1]))

    def examples_seen(self, client: int, *, uncut: bool = False) -> int:
        """Number of examples that a client processes in one round, repetitions included.

        ``uncut``: as if the planner had not cut its local steps.
        """
        training = self.training if uncut else self.training_of(client)
        return training.settings.examples_seen(len(self.examples(client)))

    def training_of(self, client: int) -> LocalTraining:
        """The run's local training, with the steps and micro-batches planned for this client."""
        planned = self.devices.local_steps if self.devices else ()
        steps, training = planned[client] if planned else None, self.training
        parts = self.devices.micro_batches if self.devices else ()
        if parts and parts[client] is not None:
            training = training.with_settings(micro_batch=parts[client])
        if steps is None:
            return training
        fewer = training.with_settings(local_epochs=None, local_steps=steps)
        if training.settings.local_steps is not None:
            return fewer
        number = len(self.examples(client))  # the planner may have assumed more of them
        are_fewer = fewer.settings.examples_seen(number) < training.settings.examples_seen(number)
        return fewer if are_fewer else training

    def device_name(self, client: int) -> str:
        """The client's device, with ``[fleet]``; else empty."""
        return self.devices.profiles[client].name if self.devices else ""

    def client_name(self, client: int) -> str:
        """``client 3``, or ``client 3 (old-phone)``."""
        name = self.device_name(client)
        return f"client {client}" + (f" ({name})" if name else "")

    @cached_property
    def learning_rates(self) -> NDArray[np.float64]:
        """Learning rate per client, before the schedule's factor."""
        clients, default = self.config.clients, self.config.training.learning_rate
        rates = [group.learning_rate or default for group in clients.groups]
        given = clients.learning_rates or np.repeat(rates, clients.group_sizes())
        return np.asarray(given, dtype=np.float64)

    def learning_rate(self, client: int, round: int) -> float:
        training = self.config.training
        factor = training.rate_factor(round)
        if training.slice_power:
            factor *= training.slice_factor(self.plan.achieved_ratios[client], round)
        return float(self.learning_rates[client] * factor)


def job_from_config(config: RunConfig, progress: Progress | None = None) -> Job:
    """Load the data, build the model, split the data and plan, from a configuration."""
    return make_job(config, model_from_config(config), load_data(config, progress))


def make_job(
    config: RunConfig,
    model: nn.Module,
    data: TrainingData,
    *,
    split: Split | None = None,
    ratios: Sequence[float | Allocation] | None = None,
    task: Task | None = None,
    augment: Augment | None = None,
) -> Job:
    """Make a job from a model and data in memory; ``task`` instead of the configuration's."""
    config = on_device(config)
    model = uncompiled(model)
    task = task or config.task.task()
    parts, example, outputs = try_data(config, model, parts_of(data), task)
    train, validation, *test = parts.values()
    same = None if data.test is None else validation  # where both are one
    data = TrainingData(train, validation, test[0] if test else same)
    training = local_training_of(config, task.loss, augment)
    plan, devices = plan_from_config(config, model, example, ratios, len(data.train), training)
    split = split or split_data(config, data.train)
    if split.num_clients != plan.num_clients:
        problem = f"there are {plan.num_clients} clients, but the split is for {split.num_clients}."
        raise ConfigError(problem, key="clients.num_clients")
    try_augment(training, data.train)
    if training.recipe.masked_loss:
        _refuse_without_labels(data, outputs)
    arranged = TrainingData(data.train.arranged(split.order), data.validation, data.test)
    if likes_channels_last(model, example):
        arranged = arranged.with_channels_last()
    return Job(
        config=config, model=model, plan=plan, devices=devices, training=training,
        samples=arranged.train, offsets=split.offsets, validation=arranged.validation,
        test=arranged.test, metric=task.metric,
    )  # fmt: skip


def local_training_of(
    config: RunConfig, loss: Loss = classification_loss, augment: Augment | None = None
) -> LocalTraining:
    path = config.training.augment
    if path == FROM_PYTHON and augment is None:
        problem = f"{FROM_PYTHON!r} stands for a function that was given to fedplt.train. Name it "
        do = "by import path ('my_package.images:augment'), or leave it out."
        raise ConfigError(problem + do, key="training.augment")
    if path is not None and augment is None:
        augment = import_object(path, "training.augment")
    try_optimizer(config.training)
    return LocalTraining(config.training, loss, augment, method_from_config(config).recipe)


def _refuse_without_labels(data: TrainingData, outputs: Any) -> None:
    if not isinstance(outputs, Tensor):
        problem = f"it needs a model that returns a tensor, not a {type(outputs).__name__}."
        raise ConfigError(problem, key="method.masked_loss")
    try:
        data.train.labels()
    except DataError as error:
        raise ConfigError(str(error), key="method.masked_loss") from error


def plan_without_data(config: RunConfig) -> Plan:
    """The plan that :func:`job_from_config` would make, without fetching a built-in data set."""
    return _plan_without_data(config)[0]


def workload_without_data(config: RunConfig) -> ExactWorkload:
    """The workload of a client's round for the fleet planner, without fetching data."""
    plan, num_examples, counter = _plan_without_data(config)
    return nominal_workload(config, plan.layers, num_examples, counter)


def _plan_without_data(config: RunConfig) -> tuple[Plan, int | None, MemoryCounter]:
    model = model_from_config(config)
    num_examples = None
    if config.data.name in CATALOG:
        example = torch.zeros(2, *CATALOG[config.data.name].shape), torch.zeros(2).long()
    else:
        data = load_data(config)
        num_examples = len(data.train)
        example = first_examples(data.validation)
    task = config.task.task()
    try_model(config, model, *example, task)
    training = local_training_of(config, task.loss)
    plan, _ = plan_from_config(
        config, model, example[0], num_examples=num_examples, training=training
    )
    return plan, num_examples, MemoryCounter(model, example[0], training)


class DataOnNodes:
    """Stands for examples that the server does not have."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def batch(self, *_: Any, **__: Any) -> NoReturn:
        raise DataError(f"the data is on the nodes (data.name = {ON_NODES!r}).")

    def arranged(self, *_: Any, **__: Any) -> DataOnNodes:
        return self

    labels = batch
    to = with_channels_last = arranged

    def checksum(self, start: int) -> int:
        return zlib.crc32(b"on nodes", start)


def make_server_job(config: RunConfig, num_examples: Sequence[int]) -> Job:
    """The job of a server without data; ``num_examples`` of every client."""
    model, task, total = model_from_config(config), config.task.task(), sum(num_examples)
    training = local_training_of(config, task.loss)
    plan, devices = plan_from_config(
        config, model, example_input(config), num_examples=total, training=training
    )
    nowhere = DataOnNodes(total)
    offsets: NDArray[np.int64] = np.concatenate([[0], np.cumsum(num_examples)]).astype(np.int64)
    return Job(
        config=config, model=model, plan=plan, devices=devices, samples=nowhere, offsets=offsets,
        validation=nowhere, training=training, metric=task.metric,
    )  # fmt: skip


def example_input(config: RunConfig) -> torch.Tensor:
    """Zeros of the configured shape, or the built-in model's own example."""
    settings = config.model
    if settings.input_shape is not None:
        dtype = torch.int64 if settings.input_type == "integer" else torch.float32
        return torch.zeros(2, *settings.input_shape, dtype=dtype)
    spec = MODELS.get(settings.name)
    if spec is None or spec.example is None:
        problem = "the server has no data to learn it from; give the shape of one example, such as "
        raise ConfigError(f"{problem}input_shape = [3, 32, 32].", key="model.input_shape")
    return spec.example()


def memory_counter(job: Job) -> MemoryCounter:
    """Counts the memory of the run's training; the data may be on the nodes."""
    on_nodes = isinstance(job.samples, DataOnNodes)
    example = example_input(job.config) if on_nodes else first_examples(job.samples)[0]
    return MemoryCounter(job.model, example, job.training)


def with_claims(config: RunConfig, numbers: Sequence[int]) -> RunConfig:
    """The configuration with the numbers of examples that clients report, and a cap on them."""
    clients = config.clients.model_copy(update={"num_examples": list(numbers)})
    server = config.server
    weighs = server.weights == "examples" and not server.rule.counts_clients
    if weighs and server.max_examples is None:
        server = server.model_copy(update={"max_examples": claim_cap(numbers)})
    return config.model_copy(update={"clients": clients, "server": server})
