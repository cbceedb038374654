"""Engines of plain functions: the round loop without workers and without training."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from fedplt import ClientUpdate
from fedplt.client.evaluation import Evaluation
from fedplt.client.trainer import ClientResult
from fedplt.federation.loop import Federation
from tests.support.jobs import blob_job


class FakeEngine:
    """Every client moves everything it trains by one, except where told otherwise."""

    failures: ClassVar = {}

    def __init__(self, job, bad=None):
        self.job, self.bad = job, bad or {}

    def train(self, round, sent, assignments, block_weights=None, *, upload=True):
        def loss(client):
            return math.nan if client in self.bad else 1.0

        numbers = self.job.num_examples
        return [ClientResult(k, int(numbers[k]), 1.0, loss(k), 0.0) for k in assignments]

    def collect(self, clients):
        for client in clients:
            size = self.job.plan.assignment(client).update_size
            values = self.bad.get(client, np.ones(size, dtype=np.float32))
            yield client, ClientUpdate(values, int(self.job.num_examples[client]), 1.0)

    def evaluate(self, part, state):
        return Evaluation(0.5, 0.75, np.array([1, 1, 1]), np.array([1.0, 0.5, 0.75]))

    def keep_local(self, clients): ...

    def local_tensors(self):
        return {}

    def close(self): ...


def run_fake(job, bad=None):
    """The history, and by how much the state has moved."""
    federation = Federation(job, FakeEngine(job, bad))
    before = federation.state.clone()
    history = federation.run()
    return history, federation.state - before


NORMS = {0: 1.0, 1: 2.0, 2: 3.0, 3: 0.5, 4: 4.0}


class NormsEngine:
    """Client k moves everything it trains by k + 1, and says the norms it is told to say."""

    failures: ClassVar = {}

    def __init__(self, job, norms=None):
        self.job, self.norms = job, norms or NORMS
        self.trained, self.collected = [], []

    def train(self, round, sent, assignments, block_weights=None, *, upload=True):
        self.trained.append(list(assignments))
        numbers = self.job.num_examples
        return [ClientResult(k, int(numbers[k]), self.norms[k], 1.0, 0.0) for k in assignments]

    def collect(self, clients):
        self.collected.append(list(clients))
        for k in clients:
            size = self.job.plan.assignment(k).update_size
            values = np.full(size, k + 1.0, dtype=np.float32)
            yield k, ClientUpdate(values, int(self.job.num_examples[k]), self.norms[k])

    def evaluate(self, part, state):
        return Evaluation(0.5, 0.75, np.array([1]), np.array([1.0]))

    def keep_local(self, clients): ...

    def local_tensors(self):
        return {}

    def restore_local(self, tensors): ...

    def close(self): ...


def sampling_federation(told=None, rounds=1, **sampling):
    """Five clients that say the norms ``told``, chosen by ``sampling``."""
    job = blob_job(rounds=rounds, sampling=sampling)
    return Federation(job, NormsEngine(job, told))
