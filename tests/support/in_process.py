"""The simulator without processes, for tests that are about something else."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from unittest import mock

from fedplt.engines.simulator import engine
from fedplt.engines.simulator.worker import Worker


class _NoProcesses:
    """A pool whose one worker lives here: nothing is forked, and torch stays warm."""

    def __init__(self, job, shared, *_):
        self.worker = Worker(replace(job, model=deepcopy(job.model)), shared)

    def do(self, tasks):
        for task in tasks:
            yield task, self.worker.do(task)

    def close(self):
        pass


def in_process(job, stop):
    """Give it as ``engine``: the same bits, in less time."""
    with mock.patch.object(engine, "WorkerPool", _NoProcesses):
        return engine.SimulatorEngine(job, stop)
