"""Clients that lie, for the robustness figures: an engine that changes what some clients send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedplt import ClientUpdate
from fedplt.data import TensorSamples
from fedplt.engines.simulator import SimulatorEngine
from fedplt.federation import Job

Change = Callable[[ClientUpdate], ClientUpdate]


def sign_flipped(update: ClientUpdate) -> ClientUpdate:
    return replace(update, values=-update.values)


def scaled(update: ClientUpdate) -> ClientUpdate:
    """Ten times as long."""
    return replace(update, values=10 * update.values, norm=10 * update.norm)


def reversed_scaled(update: ClientUpdate) -> ClientUpdate:
    """Ten times as long, in the opposite direction."""
    return scaled(sign_flipped(update))


def boastful(update: ClientUpdate) -> ClientUpdate:
    """Sign-flipped, and claims to have seen 10^12 examples."""
    return replace(update, values=-update.values, num_examples=10**12)


class BadEngine:
    """The simulator, in which some clients change their updates before they send them."""

    def __init__(self, engine: SimulatorEngine, bad: Sequence[int], change: Change) -> None:
        self._engine, self._bad, self._change = engine, set(bad), change

    def collect(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientUpdate]]:
        for client, update in self._engine.collect(clients):
            yield client, self._change(update) if client in self._bad else update

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def with_bad(bad: Sequence[int], change: Change) -> Callable[..., Any]:
    """For ``run_job(..., engine=...)``."""
    return lambda job, stop: BadEngine(SimulatorEngine(job, stop), bad, change)


def with_flipped_labels(job: Job, bad: Sequence[int], num_classes: int = 10) -> Job:
    """A job in which these clients' labels are reversed: class c becomes the last minus c."""
    samples = job.samples
    assert isinstance(samples, TensorSamples)
    labels = samples.targets.clone()
    for client in bad:
        place = torch.as_tensor(np.asarray(job.examples(client)))
        labels[place] = num_classes - 1 - labels[place]
    return replace(job, samples=TensorSamples(samples.inputs, labels))
