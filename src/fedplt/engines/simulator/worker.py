"""A worker process: receives tasks, calls ``fedplt.client`` with one thread, and answers."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedplt.client import ClientResult, ClientTrainer, TrainOrder, evaluate_chunk, gather_statistics
from fedplt.engines.simulator.interprocess import Connection, SharedMemory, ThroughFile, encode
from fedplt.errors import DataError, FedpltError
from fedplt.federation import Job
from fedplt.fleet import keep_freed_memory
from fedplt.kernels import buffer_positions, take

PARENT_CHECK_SECONDS = 1.0


@dataclass(frozen=True)
class WorkerTask:
    """A call of one of the worker's methods."""

    version: int
    """The version of the global state that the task uses."""
    what: str
    """The task's name in messages."""
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Failure:
    """A task failed in the worker."""

    reason: str
    traceback: str
    """The traceback; empty if the error's message is enough."""
    about_data: bool = False


class Worker:
    """Executes tasks with one model."""

    def __init__(self, job: Job, shared: SharedMemory) -> None:
        self.job, self.shared = job, shared
        device = torch.device(job.config.engine.device)
        self.samples, self.validation = job.samples.to(device), job.validation.to(device)
        self.test = None if job.test is None else job.test.to(device)
        _leave_shared_memory(job.model)
        self.trainer = ClientTrainer(
            job.model.to(device), job.layers, shared.state, job.plan.local_index
        )
        self.version = -1

    def do(self, task: WorkerTask) -> Any:
        if task.version != self.version:  # the server has a new global state
            self.trainer.refresh()
            self.version = task.version
        return getattr(self, task.method)(*task.arguments)

    def evaluate(self, part: str, client: int | None, chunk: int) -> Any:
        """Evaluate a chunk of the validation or test data, for a client with its local state."""
        samples = self.test if part == "test" else self.validation
        assert samples is not None
        if client is not None:
            self._load_local(client)
        loss, metric = self.job.training.loss, self.job.metric
        try:
            return evaluate_chunk(self.trainer.model, samples, chunk, loss, metric)
        finally:
            self.trainer.reset_buffers(warn=False)

    def train(self, round: int, client: int, place: int) -> ClientResult:
        """Train a client; its update is written to the shared array, starting at ``place``."""
        job, shared = self.job, self.shared
        assignment, weights = job.plan.in_round(round)[client], shared.block_weights
        order = TrainOrder(
            client=client, round=round, seed=job.config.seed, assignment=assignment,
            training=job.training_of(client), learning_rate=job.learning_rate(client, round),
            block_weights=None if weights is None else take(weights, assignment.uploaded),
        )  # fmt: skip
        self._load_local(client)
        update = shared.updates[place : place + assignment.update_size]
        result = self.trainer.train(order, self.samples, job.examples(client), update)
        if shared.trained_local is not None:
            shared.trained_local[client] = self.trainer.local_state()
        return result

    def _load_local(self, client: int) -> None:
        if self.shared.local is not None:
            self.trainer.load_local_state(self.shared.local[client])

    def statistics(self, chunk: int) -> tuple[int, NDArray[np.float64]]:
        """Number of examples and running statistics of a chunk of the training data."""
        trainer = self.trainer
        number = gather_statistics(trainer.model, self.samples, chunk)
        gathered = trainer.state.cpu()[buffer_positions(self.job.layers)].double()
        trainer.refresh()
        trainer.reset_buffers(warn=False)  # such as num_batches_tracked
        return number, gathered.numpy()  # a tensor would not outlive this process


def _leave_shared_memory(model: nn.Module) -> None:
    """Copy the model's tensors, which spawned workers get in shared memory.

    ``num_batches_tracked`` changes in training, so each worker needs its own copy.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_shared():
            tensor.data = tensor.data.clone()


def worker_main(
    end: socket.socket, job: ThroughFile[Job], shared: SharedMemory, parent: int
) -> None:
    """Answer tasks until the parent process kills this one, or exits itself."""
    for number in (signal.SIGINT, signal.SIGTERM):  # terminals and schedulers signal all processes:
        signal.signal(number, signal.SIG_IGN)  # the parent saves the run, then ends its workers
    torch.set_num_threads(1)  # more threads are very slow when other processes need a core
    keep_freed_memory()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection, worker = Connection(end), Worker(job.value, shared)
    while True:
        try:
            task = connection.wait()
        except EOFError:
            return
        try:
            answer = encode(worker.do(task))
        except FedpltError as error:
            answer = encode(Failure(str(error), "", isinstance(error, DataError)))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            answer = encode(Failure(reason, traceback.format_exc()))
        connection.send(answer)


def _end_with(parent: int) -> None:
    """Exit soon after the parent process does, even while waiting or in a long task."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(0)
