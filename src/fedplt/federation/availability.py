"""Who is there in a round, and how long it would take on the clients' own devices.

A client is away where it drops out (by chance, ``fleet.dropout``) or where its device is predicted
to miss the round's deadline. Who is away gets nothing and sends nothing in that round. A
simulated round lasts as long as its slowest client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedplt.cost import Flops, download_bytes, exact_flops, safetensors_bytes
from fedplt.errors import ConfigError
from fedplt.federation.job import Job
from fedplt.fleet import Work, round_time
from fedplt.seeds import generator


@dataclass(frozen=True)
class Attendance:
    """Who is there, who is not and why, and how long the round takes."""

    present: list[int]
    dropped: list[int]
    late: list[int]
    seconds: float
    """Simulated; 0 without ``[fleet]``."""


class Availability:
    """Tells, round by round, who is there."""

    def __init__(self, job: Job) -> None:
        self.job, self.settings = job, job.config.fleet
        deadline = self.settings.round_deadline if self.settings else None
        if deadline is not None and self.seconds.min() > deadline:
            raise ConfigError(
                f"fleet.round_deadline: nobody finishes within {deadline:g} s; the fastest client "
                f"takes {self.seconds.min():.3g} s. Raise it."
            )

    def attend(self, clients: Sequence[int], round: int) -> Attendance:
        """Of those who were to take part in this round."""
        settings = self.settings
        if settings is None:
            return Attendance(list(clients), [], [], 0.0)
        deadline = settings.round_deadline or np.inf
        late = [client for client in clients if self.seconds[client] > deadline]
        chances = generator(self.job.config.seed, "dropout", round=round).random(len(self.seconds))
        dropped = [
            client
            for client in clients
            if self.seconds[client] <= deadline and chances[client] < settings.dropout
        ]
        away = {*late, *dropped}
        present = [client for client in clients if client not in away]
        slowest = max((float(self.seconds[client]) for client in present), default=0.0)
        return Attendance(present, dropped, late, slowest)

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """Predicted time of every client's round, from its device, slices and examples."""
        job = self.job
        assert job.devices is not None
        flops: dict[tuple[int, ...], Flops] = {}  # depend on how many sub-layers, not on which
        result = []
        for client, device in enumerate(job.devices.profiles):
            assignment = job.plan.client(client)
            counts = assignment.counts
            if counts not in flops:
                flops[counts] = exact_flops(assignment)
            examples, each = job.examples_seen(client), flops[counts]
            work = Work(
                examples * each.forward,
                examples * (each.total - each.forward),
                download_bytes(assignment),
                safetensors_bytes("update", int(job.plan.update_sizes[client])),
            )
            result.append(round_time(device, work).total)
        return np.array(result)
