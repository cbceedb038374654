"""The worker processes: sends them tasks, and replaces a worker that dies.

A task writes to shared memory only, and a repeated task overwrites all of it. So a replacement
gives the same bits, at whatever point the worker died.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pickle import PicklingError
from typing import Any

import torch.multiprocessing as torch_multiprocessing

from fedplt.engines.simulator.interprocess import (
    POLL_SECONDS,
    Connection,
    SharedMemory,
    ThroughFile,
    encode,
)
from fedplt.engines.simulator.worker import Failure, WorkerTask, worker_main
from fedplt.errors import DataError, RunError
from fedplt.federation import Interrupted, Job

EXIT_SECONDS = 1.0
"""Seconds that a worker may take to exit after it has closed its connection."""
KILL_SECONDS = 5.0
"""Seconds that killed workers may take to exit."""
MOST_DEATHS = 3
"""The run ends when this many workers have died at the same task."""
QUEUED_PER_WORKER = 2  # one running, one waiting: no worker waits for a message
HINT = "out of memory? Fewer workers (engine.workers; in a comparison, --processes) need less."
SPAWNED = (
    "Spawned workers need a model, loss, metric and data that can be pickled (no lambdas), and a "
    "script whose top level is under: if __name__ == '__main__'."
)


@dataclass(eq=False)
class _Worker:
    process: multiprocessing.process.BaseProcess
    connection: Connection
    tasks: deque[WorkerTask] = field(default_factory=deque)
    """Tasks that were sent and not yet answered; answers come in this order."""
    answered: bool = False
    last_sign: float = 0.0
    """Time of its last answer, or of its first task after being idle."""
    abandoned: bool = False
    """Whether it is being killed: its results are discarded."""

    def fileno(self) -> int:
        return self.connection.fileno()


class WorkerPool:
    """``number`` workers; the longest tasks should be given first."""

    def __init__(
        self, job: Job, shared: SharedMemory, number: int, start_method: str,
        stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.job, self.shared, self.method, self.stop = job, shared, start_method, stop
        self.timeout = job.config.engine.timeout_seconds
        self._workers: list[_Worker] = []
        self._deaths: Counter[WorkerTask] = Counter()
        self._looked = 0.0
        try:
            for index in range(number):
                self._workers.append(self._start(f"fedplt-worker-{index}"))
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[multiprocessing.process.BaseProcess]:
        return [worker.process for worker in self._workers]

    def do(self, tasks: Sequence[WorkerTask]) -> Iterator[tuple[WorkerTask, Any]]:
        """Send tasks to the workers; yield (task, answer) as answers arrive."""
        todo: deque[Any] = deque(tasks)
        self._deaths.clear()
        try:
            for _ in range(QUEUED_PER_WORKER):
                for index in range(len(self._workers)):
                    self._deal(index, todo)
            while busy := [worker for worker in self._workers if worker.tasks]:
                self._check_stop()
                for worker in _ready(busy, POLL_SECONDS):
                    yield from self._receive(self._workers.index(worker), todo)
                if time.monotonic() - self._looked >= POLL_SECONDS:
                    self._look(todo)
        finally:
            self._abandon()

    def _deal(self, index: int, todo: deque[Any]) -> None:
        """Give a worker its next task, if there is one."""
        if not todo:
            return
        worker = self._workers[index]
        if not worker.tasks:
            if not worker.process.is_alive():  # it died idle: no task is to blame
                self._replace(index, todo)
                worker = self._workers[index]
            worker.last_sign = time.monotonic()
        task = todo.popleft()
        worker.tasks.append(task)
        try:
            worker.connection.send(encode(task), lambda: self._waiting(worker))
        except OSError:  # the worker died; its earlier answers can still be read
            self._end([worker])

    def _waiting(self, worker: _Worker) -> None:
        self._check_stop()
        if not worker.process.is_alive():
            raise BrokenPipeError
        self._check_deadline(worker)

    def _receive(self, index: int, todo: deque[Any]) -> Iterator[tuple[Any, Any]]:
        worker = self._workers[index]
        try:
            answers = worker.connection.receive()
        except EOFError:
            self._replace_and_refill(index, todo)
            return
        for answer in answers:
            task = worker.tasks.popleft()
            worker.answered, worker.last_sign = True, time.monotonic()
            if isinstance(answer, Failure):
                kind = DataError if answer.about_data else RunError
                trace = f"\n\n{answer.traceback}" if answer.traceback else ""
                raise kind(f"{task.what} failed: {answer.reason}{trace}")
            self._deal(index, todo)
            yield task, answer

    def _look(self, todo: deque[Any]) -> None:
        """Detect workers that do not answer, or that died while their socket is still open."""
        self._looked = time.monotonic()
        for index, worker in enumerate(list(self._workers)):
            if not worker.tasks or _ready([worker], 0):  # its answers are read first
                continue
            if not worker.process.is_alive() and not _ready([worker], 0):
                self._replace_and_refill(index, todo)
            else:
                self._check_deadline(worker)

    def _abandon(self) -> None:
        """Kill workers with unanswered tasks, after an error or a stop by the user."""
        busy = [worker for worker in self._workers if worker.tasks]
        self._end(busy)
        for worker in busy:
            worker.tasks.clear()
            worker.abandoned = True

    def _check_stop(self) -> None:
        if self.stop():
            raise Interrupted

    def _check_deadline(self, worker: _Worker) -> None:
        if time.monotonic() - worker.last_sign > self.timeout:
            raise RunError(
                f"{worker.process.name} has not answered for {self.timeout:g} s "
                f"(engine.timeout_seconds): {worker.tasks[0].what}. Raise it if this really takes "
                "so long."
            )

    def _replace_and_refill(self, index: int, todo: deque[Any]) -> None:
        self._replace(index, todo)
        for _ in range(QUEUED_PER_WORKER):
            self._deal(index, todo)

    def _replace(self, index: int, todo: deque[Any]) -> None:
        """Start another worker in place of a dead one; its tasks come first in ``todo``."""
        worker = self._workers[index]
        _joined([worker.process], EXIT_SECONDS)  # wait for its exit code
        self._end([worker])
        name, code = worker.process.name, worker.process.exitcode or 0
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        if self.method == "spawn" and code == 1 and not worker.answered:
            raise RunError(f"{name} could not start. {SPAWNED}")
        if worker.tasks:
            at = worker.tasks[0]
            self._deaths[at] += 1
            if self._deaths[at] >= MOST_DEATHS:
                raise RunError(f"{at.what}: {MOST_DEATHS} workers died at it ({how}); {HINT}")
            todo.extendleft(reversed(worker.tasks))
            worker.tasks.clear()
            doing = f"at {at.what}, which is done again, to the same bits"
        else:
            doing = "while it had nothing to do"
        if not worker.abandoned:
            warnings.warn(f"{name} died ({how}) {doing}; {HINT}", stacklevel=2)
        worker.connection.close()
        self._workers[index] = self._start(name)

    def _start(self, name: str) -> _Worker:
        context: Any = torch_multiprocessing.get_context(self.method)
        ours, theirs = socket.socketpair()
        job = ThroughFile(self.job)
        arguments = (theirs, job, self.shared, os.getpid())
        process = context.Process(target=worker_main, args=arguments, name=name, daemon=True)
        try:
            process.start()
        except (AttributeError, TypeError, RuntimeError, PicklingError) as error:
            ours.close()
            raise RunError(f"the workers cannot be started: {error}. {SPAWNED}") from error
        except OSError as error:  # no memory or process left, or no room for a temporary file
            ours.close()
            raise RunError(
                f"the workers cannot be started: {error.strerror or error}. (Each gets its job "
                f"through a file in {tempfile.gettempdir()}; TMPDIR names another folder.)"
            ) from error
        finally:
            theirs.close()
            job.close()
        return _Worker(process, Connection(ours))

    def close(self) -> None:
        self._end(self._workers)
        for worker in self._workers:
            worker.connection.close()
        self._workers = []

    @staticmethod
    def _end(workers: Sequence[_Worker]) -> None:
        """Kill these workers: they have nothing to save, and ignore SIGTERM."""
        processes = [worker.process for worker in workers]
        for process in processes:
            process.kill()
        _joined(processes, KILL_SECONDS)


def _ready(workers: Sequence[_Worker], seconds: float) -> list[Any]:
    """The workers with a message, or whose end is closed."""
    ends: list[Any] = list(workers)
    return [worker for worker in workers if worker.connection.messages] or wait(ends, seconds)


def _joined(processes: Sequence[multiprocessing.process.BaseProcess], seconds: float) -> None:
    """Wait until all of them have ended, but not longer than this."""
    ends = time.monotonic() + seconds
    # Not join(): it waits for a pipe, which a worker's own children may hold open.
    while alive := [process for process in processes if process.is_alive()]:
        left = ends - time.monotonic()
        if left <= 0:
            return
        wait([process.sentinel for process in alive], min(left, 0.02))
