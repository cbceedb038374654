"""A worker process: one resident model, one thread, clients trained one after another."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from fedplt.aggregation import Aggregator
from fedplt.evaluation import evaluate_chunk
from fedplt.federation.job import Job
from fedplt.plan import Assignment
from fedplt.state import bind_state
from fedplt.training import train_client
from fedplt.update import update_norm

PARENT_CHECK_SECONDS = 1.0


@dataclass(frozen=True)
class TrainTask:
    """Train a client and put its update into the shared array from ``place`` on."""

    version: int
    round: int
    client: int
    place: int


@dataclass(frozen=True)
class EvaluateTask:
    """Evaluate one chunk of the validation or test data."""

    version: int
    part: str
    chunk: int


@dataclass(frozen=True)
class Failure:
    """A task failed in the worker."""

    task: Any
    reason: str
    traceback: str


class Worker:
    """Trains and evaluates with one resident model; only slices are changed and put back."""

    def __init__(self, job: Job, shared_state: Tensor, shared_updates: Tensor) -> None:
        self.job = job
        device = torch.device(job.config.engine.device)
        self.model: nn.Module = job.model.to(device)
        self.samples, self.validation = job.samples.to(device), job.validation.to(device)
        self.test = None if job.test is None else job.test.to(device)
        self.shared_state, self.shared_updates = shared_state, shared_updates
        self.state = bind_state(self.model, job.layers)
        self.version = -1
        self.divisors: tuple[int, Tensor] | None = None
        shared = {spec.name for _, _, spec in job.layers.placed}
        self.other_buffers = {
            name: (buffer, buffer.clone())
            for name, buffer in self.model.named_buffers()
            if name not in shared
        }

    def do(self, task: Any) -> Any:
        if task.version != self.version:  # the server has a new global state
            self.state.copy_(self.shared_state)
            self.version = task.version
        if isinstance(task, EvaluateTask):
            samples = self.test if task.part == "test" else self.validation
            assert samples is not None
            job = self.job
            return evaluate_chunk(self.model, samples, task.chunk, job.training.loss, job.metric)
        return self._train(task)

    def _train(self, task: TrainTask) -> tuple[int, int, float, dict[str, float]]:
        job, client = self.job, task.client
        started = time.perf_counter()
        assignment = job.plan.client(client, task.round)
        loss = train_client(
            self.model,
            assignment,
            self.samples,
            job.examples(client),
            job.training_of(client),
            learning_rate=job.learning_rate(client, task.round),
            seed=job.config.seed,
            round=task.round,
            client=client,
        )
        update = self.shared_updates[task.place : task.place + assignment.update_size]
        norm = self._upload(assignment, update)
        self._put_buffers_back()
        metrics = {"loss": loss, "seconds": time.perf_counter() - started}
        if job.config.sampling.objective == "aggregate":
            metrics["weighted_norm"] = self._weighted_norm(assignment, update, task.round)
        return client, len(job.examples(client)), norm, metrics

    def _upload(self, assignment: Assignment, update: Tensor) -> float:
        """Put what changed into the shared array, the model back as it was; give the norm.

        The global state has the old values, so nothing had to be copied before training.
        """
        done = 0
        for start, stop in assignment.segments:
            new, old = self.state[start:stop], self.shared_state[start:stop]
            torch.sub(new.cpu(), old, out=update[done : done + stop - start])
            new.copy_(old)
            done += stop - start
        return update_norm(update, assignment)

    def _weighted_norm(self, assignment: Assignment, update: Tensor, round: int) -> float:
        """The norm of the update as it will be aggregated: divided by the weight of each block."""
        if self.divisors is None or self.divisors[0] != round:
            aggregator = Aggregator(self.job.layers)
            for client, number in enumerate(self.job.num_examples.tolist()):
                aggregator.expect(self.job.plan.client(client, round), number)
            self.divisors = (round, aggregator.divisors())
        parts = [self.divisors[1][start:stop] for start, stop in assignment.segments]
        return update_norm(update / torch.cat(parts), assignment)

    def _put_buffers_back(self) -> None:
        """Buffers that nobody averages must not carry one client's training into the next."""
        for name, (buffer, old) in self.other_buffers.items():
            if not torch.equal(buffer, old):
                buffer.copy_(old)
                warnings.warn(
                    f"buffer {name} changes in training; fedplt shares only running statistics of "
                    "norms, so it is put back to its initial value after every client.",
                    stacklevel=2,
                )


def worker_main(
    connection: Connection, job: Job, shared_state: Tensor, shared_updates: Tensor, parent: int
) -> None:
    """Answer tasks until told to stop, or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # two threads collapse when anything else needs a core
    worker = Worker(job, shared_state, shared_updates)
    while True:
        while not connection.poll(PARENT_CHECK_SECONDS):
            if os.getppid() != parent:
                return
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            answer = worker.do(task)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            answer = Failure(task, reason, traceback.format_exc())
        connection.send((task, answer))
