"""The memory that the server and its workers share, so that messages stay small."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedplt.federation import Job, most_numbers
from fedplt.kernels import read_state, take


@dataclass(frozen=True, eq=False)
class LocalState:
    """The state that clients keep and never upload, (clients, values)."""

    kept: Tensor
    trained: Tensor
    """From the current round; becomes valid when the round is committed."""


@dataclass(frozen=True, eq=False)
class SharedMemory:
    """The global state, the updates of a round, and what some methods need in addition."""

    state: Tensor
    updates: Tensor
    block_weights: Tensor | None
    local: LocalState | None

    @classmethod
    def make(cls, job: Job) -> SharedMemory:
        size, by_block = job.layers.state_size, job.config.sampling.objective == "aggregate"
        return cls(
            torch.empty(size).share_memory_(),
            torch.empty(most_numbers(job)).share_memory_(),
            torch.empty(size).share_memory_() if by_block else None,
            _local_state(job) if job.plan.local else None,
        )


def _local_state(job: Job) -> LocalState:
    """Each client starts with the model's initial values."""
    own = take(read_state(job.model, job.layers), job.plan.local_places)
    kept = own.expand(job.plan.num_clients, -1).clone().share_memory_()
    return LocalState(kept, torch.empty_like(kept).share_memory_())
