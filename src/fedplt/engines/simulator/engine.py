"""The simulator engine: worker processes on this machine.

The global state and the updates are in shared memory; sockets carry only small messages. Each
worker uses one thread. The longest tasks are sent first. Results do not depend on which worker
runs which task.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedplt.client import (
    ClientResult,
    ClientUpdate,
    Evaluation,
    Origin,
    Uplink,
    combine,
    combine_statistics,
    num_chunks,
    statistics_chunks,
)
from fedplt.engines.simulator.interprocess import SharedMemory
from fedplt.engines.simulator.pool import WorkerPool
from fedplt.engines.simulator.worker import WorkerTask
from fedplt.federation import Job, evaluation_chunks, most_clients
from fedplt.fleet import available_cores
from fedplt.planning import Assignment
from fedplt.server import Broadcast


def default_start_method(device: str) -> str:
    """``fork`` on Linux without a GPU: workers start at once and share the data without a copy.

    On other systems, and with a GPU, a fork is not safe: there it is ``spawn``.
    """
    return "fork" if sys.platform == "linux" and device == "cpu" else "spawn"


class SimulatorEngine:
    """Trains and evaluates in ``workers`` processes."""

    def __init__(self, job: Job, stop: Callable[[], bool] = lambda: False) -> None:
        self.job = job
        settings = job.config.engine
        self.failures: dict[int, str] = {}  # a client that fails here stops the run
        self._version = 0
        self._places: dict[int, tuple[int, int]] = {}
        self._results: dict[int, ClientResult] = {}
        self._assignments: Mapping[int, Assignment] = {}
        self._round = 0
        up = job.config.messages.up
        self._uplink = None if up == "float32" else Uplink(up)
        self._shared = SharedMemory.make(job)
        default = available_cores() if settings.device == "cpu" else 1
        workers = min(settings.workers or default, most_clients(job))
        method = settings.start_method or default_start_method(settings.device)
        self._pool = WorkerPool(job, self._shared, workers, method, stop)

    def train(
        self,
        round: int,
        sent: Broadcast,
        assignments: Mapping[int, Assignment],
        block_weights: Tensor | None = None,
        *,
        upload: bool = True,  # all updates are in shared memory, collected or not
    ) -> list[ClientResult]:
        self._round = round
        if block_weights is not None:
            assert self._shared.block_weights is not None
            self._shared.block_weights.copy_(block_weights)
        self._places, place = {}, 0
        for client, assignment in assignments.items():
            self._places[client] = (place, place + assignment.update_size)
            place += assignment.update_size
        assert place <= len(self._shared.updates)  # the sampler draws no more
        self._results, self._assignments = {}, assignments
        for state in (sent.state, sent.snapshot):
            some = [client for client in assignments if sent.state_of(client) is state]
            if state is not None and some:
                self._publish(state)
                for _, result in self._pool.do(self._train_tasks(round, some)):
                    self._results[result.client] = result
        return [self._results[client] for client in assignments]

    def _work(self, what: str, method: str, *arguments: Any) -> WorkerTask:
        return WorkerTask(self._version, what, method, arguments)

    def _train_tasks(self, round: int, clients: list[int]) -> list[WorkerTask]:
        """Longest first, so that the workers finish at about the same time."""
        job = self.job
        work = job.num_examples[clients] * (1 + 2 * job.plan.achieved_ratios[clients])
        ordered = np.asarray(clients)[np.argsort(-work, kind="stable")].tolist()
        return [
            self._work(f"client {k}, round {round + 1}", "train", round, k, self._places[k][0])
            for k in ordered
        ]

    def collect(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientUpdate]]:
        for client in clients:
            start, stop = self._places[client]
            result = self._results[client]
            metrics = {"loss": result.loss}
            values = self._shared.updates[start:stop].numpy()
            if self._uplink:
                values = self._uplink.send(client, values, self._assignments[client])[1]
            origin = Origin(client, self._round, self.job.plan.fingerprint)
            yield client, ClientUpdate(values, result.num_examples, result.norm, metrics, origin)

    def evaluate(self, part: str, state: Tensor) -> Evaluation:
        return self._evaluate(part, state, [None])[0]

    def evaluate_clients(
        self, part: str, state: Tensor, clients: Sequence[int]
    ) -> dict[int, Evaluation]:
        found = self._evaluate(part, state, list(clients))
        return dict(zip(clients, found, strict=True))

    def _evaluate(
        self, part: str, state: Tensor, clients: Sequence[int | None]
    ) -> list[Evaluation]:
        self._publish(state)
        samples = self.job.test if part == "test" else self.job.validation
        assert samples is not None
        number = num_chunks(samples)
        chunks = {client: evaluation_chunks(self.job, number, client) for client in clients}
        what = f"evaluation on the {part} data"
        tasks = [
            self._work(what + ("" if k is None else f" for client {k}"), "evaluate", part, k, chunk)
            for k in clients
            for chunk in chunks[k]
        ]
        found = {task.arguments: answer for task, answer in self._pool.do(tasks)}
        metric = self.job.metric
        return [combine((found[part, k, chunk] for chunk in chunks[k]), metric) for k in clients]

    def statistics(self, state: Tensor) -> Tensor:
        self._publish(state)
        chunks = range(statistics_chunks(self.job.samples))
        what = "gathering the running statistics (method.static_norm)"
        tasks = [self._work(what, "statistics", chunk) for chunk in chunks]
        found = {task.arguments[0]: answer for task, answer in self._pool.do(tasks)}
        gathered = [(number, torch.from_numpy(v)) for number, v in (found[c] for c in chunks)]
        return combine_statistics(gathered)

    def keep_local(self, clients: Sequence[int]) -> None:
        if self._uplink:
            self._uplink.keep(clients)
        local, trained = self._shared.local, self._shared.trained_local
        if local is not None and trained is not None:
            local[list(clients)] = trained[list(clients)]

    def local_tensors(self) -> dict[str, Tensor]:
        residuals = self._uplink.tensors() if self._uplink else {}
        local = self._shared.local
        return residuals if local is None else {"local": local.clone(), **residuals}

    def restore_local(self, tensors: Mapping[str, Tensor]) -> None:
        if self._uplink:
            self._uplink.restore(tensors)
        if self._shared.local is not None:
            self._shared.local.copy_(tensors["local"])

    def _publish(self, state: Tensor) -> None:
        self._shared.state.copy_(state)
        self._version += 1

    def close(self) -> None:
        self._pool.close()
