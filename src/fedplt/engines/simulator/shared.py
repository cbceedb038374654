"""The memory that the server and its workers share, so that messages stay small."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from fedplt.errors import RunError
from fedplt.federation import Job, most_numbers
from fedplt.kernels import read_state, take
from fedplt.text import bytes_text

SHARED_FOLDER = "/dev/shm"
"""Where Linux keeps shared memory."""


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
        size, by_block = job.layers.state_size, job.config.sampling.weighs_blocks
        kept = 2 * job.plan.num_clients * job.plan.local_index.size if job.plan.local else 0
        _refuse_too_much(4 * (size + most_numbers(job) + (size if by_block else 0) + kept))
        return cls(
            torch.empty(size).share_memory_(),
            torch.empty(most_numbers(job)).share_memory_(),
            torch.empty(size).share_memory_() if by_block else None,
            _local_state(job) if job.plan.local else None,
        )


def _local_state(job: Job) -> LocalState:
    """Each client starts with the model's initial values."""
    own = take(read_state(job.model, job.layers), job.plan.local_index)
    kept = own.expand(job.plan.num_clients, -1).clone().share_memory_()
    return LocalState(kept, torch.empty_like(kept).share_memory_())


def _refuse_too_much(num_bytes: int, folder: str = SHARED_FOLDER) -> None:
    """Writing to shared memory that the system does not have would end the process at once."""
    try:
        found = os.statvfs(folder)
    except OSError:  # another system
        return
    free = found.f_bavail * found.f_frsize
    if num_bytes > free:
        raise RunError(
            f"the model and the updates of a round need {bytes_text(num_bytes)} of shared memory, "
            f"but {folder} has {bytes_text(free)} left. Make it larger (docker run --shm-size), or "
            "let fewer clients take part in a round (sampling)."
        )
