"""The simulator engine: worker processes on this machine.

The global state and the updates are in shared memory; pipes carry only small messages. Each worker
uses one thread. The longest tasks are sent first; results do not depend on which worker does what.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from typing import Any

import numpy as np
import torch.multiprocessing as torch_multiprocessing
from torch import Tensor

from fedplt.client import (
    ClientResult,
    ClientUpdate,
    Evaluation,
    combine,
    combine_statistics,
    num_chunks,
    statistics_chunks,
)
from fedplt.engines.simulator.shared import SharedMemory
from fedplt.engines.simulator.worker import (
    EvaluateTask,
    Failure,
    StatisticsTask,
    TrainTask,
    worker_main,
)
from fedplt.errors import RunError
from fedplt.federation import Interrupted, Job, evaluation_chunks, most_clients
from fedplt.planning import Assignment

POLL_SECONDS = 0.2
STOP_SECONDS = 2.0
"""How long a worker may take to end before it is killed."""
SPAWNED = (
    "Spawned workers need a model, loss, metric and data that can be pickled (no lambdas), and a "
    "script whose top level is under: if __name__ == '__main__'."
)
QUEUED_PER_WORKER = 2  # one running, one waiting: no worker waits for a message


def available_cores() -> int:
    """Number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_start_method(device: str) -> str:
    """``fork`` on Linux without a GPU: workers start at once and share the data without a copy.

    On other systems, and with a GPU, a fork is not safe: ``spawn``.
    """
    return "fork" if sys.platform == "linux" and device == "cpu" else "spawn"


class SimulatorEngine:
    """Trains and evaluates in ``workers`` processes."""

    def __init__(self, job: Job, stop: Callable[[], bool] = lambda: False) -> None:
        self.job, self.stop = job, stop
        settings = job.config.engine
        self.timeout = settings.timeout_seconds
        self.failures: dict[int, str] = {}  # a client that fails here stops the run
        self._version = 0
        self._places: dict[int, tuple[int, int]] = {}
        self._results: dict[int, ClientResult] = {}
        self._shared = SharedMemory.make(job)
        default = available_cores() if settings.device == "cpu" else 1
        workers = min(settings.workers or default, most_clients(job))
        self._start(workers, settings.start_method)

    def _start(self, workers: int, start_method: str | None) -> None:
        method = start_method or default_start_method(self.job.config.engine.device)
        self._method = method
        context: Any = torch_multiprocessing.get_context(method)
        self._connections: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        for index in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=worker_main,
                args=(theirs, self.job, self._shared, os.getpid()),
                name=f"fedplt-worker-{index}",
                daemon=True,
            )
            try:
                process.start()
            except (AttributeError, TypeError, RuntimeError, PicklingError) as error:
                self.close()
                raise RunError(f"the workers cannot be started: {error}. {SPAWNED}") from error
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def train(
        self,
        round: int,
        state: Tensor,
        assignments: Mapping[int, Assignment],
        block_weights: Tensor | None = None,
        *,
        upload: bool = True,  # all updates are in shared memory, collected or not
    ) -> list[ClientResult]:
        self._publish(state)
        if self._shared.block_weights is not None and block_weights is not None:
            self._shared.block_weights.copy_(block_weights)
        self._places, place = {}, 0
        for client, assignment in assignments.items():
            self._places[client] = (place, place + assignment.update_size)
            place += assignment.update_size
        if place > len(self._shared.updates):
            raise RunError(
                f"round {round + 1}: {len(assignments)} clients were drawn, far above the budget, "
                "and their updates do not fit into the shared memory. Set sampling.norms = "
                "'fresh'."
            )
        self._results = {}
        for _, result in self._do(self._train_tasks(round, assignments)):
            self._results[result.client] = result
        return [self._results[client] for client in assignments]

    def _train_tasks(self, round: int, assignments: Mapping[int, Assignment]) -> list[TrainTask]:
        """Longest first, so that the workers finish at about the same time."""
        clients, job = list(assignments), self.job
        work = job.num_examples[clients] * (1 + 2 * job.plan.achieved_ratios[clients])
        return [
            TrainTask(
                self._version, round, client, self._places[client][0],
                assignments[client].to_message(),
            )
            for client in np.asarray(clients)[np.argsort(-work, kind="stable")].tolist()
        ]  # fmt: skip

    def collect(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientUpdate]]:
        for client in clients:
            start, stop = self._places[client]
            result = self._results[client]
            metrics = {"loss": result.loss}
            values = self._shared.updates[start:stop].numpy()
            yield client, ClientUpdate(values, result.num_examples, result.norm, metrics)

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
        tasks = [EvaluateTask(self._version, part, c, k) for k in clients for c in chunks[k]]
        answers = {(task.client, task.chunk): answer for task, answer in self._do(tasks)}
        metric = self.job.metric
        return [combine((answers[k, chunk] for chunk in chunks[k]), metric) for k in clients]

    def statistics(self, state: Tensor) -> Tensor:
        self._publish(state)
        chunks = range(statistics_chunks(self.job.samples))
        tasks = [StatisticsTask(self._version, chunk) for chunk in chunks]
        answers = {task.chunk: answer for task, answer in self._do(tasks)}
        return combine_statistics([answers[chunk] for chunk in chunks])

    def keep_local(self, clients: Sequence[int]) -> None:
        if self._shared.local:
            self._shared.local.kept[list(clients)] = self._shared.local.trained[list(clients)]

    def local_tensors(self) -> dict[str, Tensor]:
        return {"local": self._shared.local.kept.clone()} if self._shared.local else {}

    def restore_local(self, tensors: Mapping[str, Tensor]) -> None:
        if self._shared.local:
            self._shared.local.kept.copy_(tensors["local"])

    def _publish(self, state: Tensor) -> None:
        self._shared.state.copy_(state)
        self._version += 1

    def _do(self, tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Send tasks to the workers; yield (task, answer) as they arrive."""
        todo = iter(tasks)
        pending = dict.fromkeys(self._connections, 0)
        for _ in range(QUEUED_PER_WORKER):
            for connection in self._connections:
                self._deal(connection, todo, pending)
        last_answer = time.monotonic()
        while any(pending.values()):
            if self.stop():
                raise Interrupted
            ready: list[Any] = wait([c for c, number in pending.items() if number], POLL_SECONDS)
            for connection in ready:
                task, answer = self._receive(connection)
                last_answer = time.monotonic()
                pending[connection] -= 1
                self._deal(connection, todo, pending)
                yield task, answer
            if time.monotonic() - last_answer > self.timeout:
                raise RunError(
                    f"no worker has answered for {self.timeout:g} s (engine.timeout_seconds). "
                    "Raise it if your clients really take that long."
                )

    def _deal(self, connection: Connection, todo: Iterator[Any], pending: Any) -> None:
        task = next(todo, None)
        if task is not None:
            try:
                connection.send(task)
            except OSError as error:
                raise self._died(connection) from error
            pending[connection] += 1

    def _receive(self, connection: Connection) -> tuple[Any, Any]:
        try:
            task, answer = connection.recv()
        except (EOFError, OSError) as error:
            raise self._died(connection) from error
        if isinstance(answer, Failure):
            if isinstance(task, TrainTask):
                what = f"client {task.client}, round {task.round + 1}"
            elif isinstance(task, EvaluateTask):
                what = f"evaluation on the {task.part} data"
            else:
                what = "gathering the running statistics (method.static_norm)"
            raise RunError(f"{what} failed: {answer.reason}\n\n{answer.traceback}")
        return task, answer

    def _died(self, connection: Connection) -> RunError:
        process = self._processes[self._connections.index(connection)]
        process.join(1)
        code = process.exitcode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        if self._method == "spawn" and code == 1:  # it failed before its first task
            return RunError(f"{process.name} could not start. {SPAWNED}")
        return RunError(
            f"{process.name} died ({how}); was it killed, or out of memory? "
            "Fewer workers (engine.workers; in a comparison, --processes) need less memory."
        )

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(STOP_SECONDS)
            if process.is_alive():
                # A signal in a forked worker's first moment meets the parent's handler, which only
                # takes note of it; a stopped worker does not even get it.
                process.kill()
                process.join(STOP_SECONDS)
        self._connections, self._processes = [], []
