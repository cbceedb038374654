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

from fedplt.client.evaluation import CHUNK, evaluate_chunk
from fedplt.client.local_training import train_client
from fedplt.client.recipe_blocks import scaled
from fedplt.client.submodels import Submodels
from fedplt.client.update import update_norm
from fedplt.federation.availability import Availability
from fedplt.federation.costs import RoundCosts
from fedplt.federation.job import Job
from fedplt.kernels.flat_state import bind_state, buffer_positions, call_model
from fedplt.kernels.norm import modules_with_running_statistics
from fedplt.planning.assignment import Assignment
from fedplt.planning.layers import dotted
from fedplt.planning.plan import Plan
from fedplt.planning.submodel_plan import SubmodelAssignment
from fedplt.server.aggregation import Aggregator

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
    """Evaluate one chunk of the validation or test data; with a client's own norms, if told."""

    version: int
    part: str
    chunk: int
    client: int | None = None


@dataclass(frozen=True)
class StatisticsTask:
    """Gather the norms' statistics over one chunk of the training data."""

    version: int
    chunk: int


@dataclass(frozen=True, eq=False)
class LocalState:
    """What never leaves the clients, (clients, numbers), in shared memory."""

    kept: Tensor
    trained: Tensor
    """Of the round that runs; it counts only when the round does."""
    positions: Tensor
    """Where the numbers lie in the flat state."""

    @classmethod
    def make(cls, plan: Plan) -> LocalState | None:
        if not plan.local_segments:
            return None
        parts = [torch.arange(start, stop) for start, stop in plan.local_segments]
        positions = torch.cat(parts)
        shape = plan.num_clients, len(positions)
        return cls(
            torch.empty(shape).share_memory_(), torch.empty(shape).share_memory_(), positions
        )


@dataclass(frozen=True)
class Failure:
    """A task failed in the worker."""

    task: Any
    reason: str
    traceback: str


class Worker:
    """Trains and evaluates with one resident model; only slices are changed and put back."""

    def __init__(
        self,
        job: Job,
        shared_state: Tensor,
        shared_updates: Tensor,
        local: LocalState | None = None,
    ) -> None:
        self.job, self.local = job, local
        device = torch.device(job.config.engine.device)
        self.model: nn.Module = job.model.to(device)
        self.samples, self.validation = job.samples.to(device), job.validation.to(device)
        self.test = None if job.test is None else job.test.to(device)
        self.shared_state, self.shared_updates = shared_state, shared_updates
        self.state = bind_state(self.model, job.layers)
        self.version = -1
        self.divisors: tuple[int, Tensor] | None = None
        self.availability: Availability | None = None
        self.submodels = Submodels(self.model)
        shared = {spec.name for _, _, spec in job.layers.placed}
        self.other_buffers = {
            dotted(name, key): (module, key, buffer, buffer.clone())
            for name, module in self.model.named_modules()
            for key, buffer in module.named_buffers(recurse=False)
            if dotted(name, key) not in shared
        }

    def do(self, task: Any) -> Any:
        if task.version != self.version:  # the server has a new global state
            self.state.copy_(self.shared_state)
            self.version = task.version
        if isinstance(task, EvaluateTask):
            samples = self.test if task.part == "test" else self.validation
            assert samples is not None
            if task.client is not None:
                self._take_local(task.client)
            job = self.job
            return evaluate_chunk(self.model, samples, task.chunk, job.training.loss, job.metric)
        if isinstance(task, StatisticsTask):
            return self._statistics(task.chunk)
        return self._train(task)

    def _train(self, task: TrainTask) -> tuple[int, int, float, dict[str, float]]:
        job, client = self.job, task.client
        started = time.perf_counter()
        assignment = job.plan.client(client, task.round)
        update = self.shared_updates[task.place : task.place + assignment.update_size]
        self._take_local(client)
        if isinstance(assignment, SubmodelAssignment):
            loss, norm = self._train_submodel(task, assignment, update)
        else:
            loss = self._train_client(self.model, assignment, task)
            norm = self._upload(assignment, update)
        if self.local:
            self.local.trained[client] = self.state.cpu()[self.local.positions]
        self._put_buffers_back()
        metrics = {"loss": loss, "seconds": time.perf_counter() - started}
        if job.config.sampling.objective == "aggregate":
            metrics["weighted_norm"] = self._weighted_norm(assignment, update, task.round)
        return client, len(job.examples(client)), norm, metrics

    def _train_client(self, model: nn.Module, assignment: Assignment, task: TrainTask) -> float:
        job, client = self.job, task.client
        return train_client(
            model,
            assignment,
            self.samples,
            job.examples(client),
            job.training_of(client),
            learning_rate=job.learning_rate(client, task.round),
            seed=job.config.seed,
            round=task.round,
            client=client,
        )

    def _train_submodel(
        self, task: TrainTask, assignment: SubmodelAssignment, update: Tensor
    ) -> tuple[float, float]:
        """Train the smaller model and put what changed into the shared array."""
        small, dense = self.submodels.make(assignment, self.state), assignment.dense
        with scaled(small.model, assignment, self.job.recipe):
            loss = self._train_client(small.model, dense, task)
        trained = small.state.cpu()
        old = self.shared_state[torch.from_numpy(assignment.shared_positions)]
        new = torch.cat([trained[start:stop] for start, stop in dense.segments])
        torch.sub(new, old, out=update)
        return loss, update_norm(update, assignment)

    def _take_local(self, client: int) -> None:
        """Give the model what only this client has."""
        if self.local:
            kept = self.local.kept[client].to(self.state.device)
            self.state[self.local.positions] = kept

    def _statistics(self, chunk: int) -> tuple[int, Tensor]:
        """Statistics of every norm over a chunk of the training data, as the model is now."""
        start = chunk * CHUNK
        indices = torch.arange(start, min(start + CHUNK, len(self.samples)))
        self.model.eval()
        norms = modules_with_running_statistics(self.model)
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
            norm.train()
        with torch.no_grad():
            inputs, _ = self.samples.batch(indices)
            call_model(self.model, inputs)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        gathered = self.state.cpu()[buffer_positions(self.job.layers)].double()
        self.state.copy_(self.shared_state)
        self._put_buffers_back(warn=False)  # batches that were counted
        return len(indices), gathered

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
        if self.availability is None:
            self.availability = Availability(self.job, RoundCosts(self.job))
        if self.divisors is None or self.divisors[0] != round:
            aggregator = Aggregator(self.job.layers, self.job.recipe.normaliser)
            for client in self.availability.attend(round).present:
                number = int(self.job.num_examples[client])
                aggregator.expect(self.job.plan.client(client, round), number)
            self.divisors = (round, aggregator.divisors())
        parts = [self.divisors[1][start:stop] for start, stop in assignment.segments]
        return update_norm(update / torch.cat(parts), assignment)

    def _put_buffers_back(self, warn: bool = True) -> None:
        """Buffers that nobody averages must not carry one client's training into the next."""
        for name, (module, key, buffer, old) in self.other_buffers.items():
            now = module._buffers[key]
            if now is buffer and torch.equal(buffer, old):
                continue
            module._buffers[key] = buffer.copy_(old)
            if warn and not name.endswith("num_batches_tracked"):
                warnings.warn(
                    f"buffer {name} changes in training; fedplt shares only running statistics of "
                    "norms, so it is put back to its initial value after every client.",
                    stacklevel=2,
                )


def worker_main(
    connection: Connection,
    job: Job,
    shared_state: Tensor,
    shared_updates: Tensor,
    local: LocalState | None,
    parent: int,
) -> None:
    """Answer tasks until told to stop, or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # two threads collapse when anything else needs a core
    worker = Worker(job, shared_state, shared_updates, local)
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
