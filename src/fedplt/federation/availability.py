"""Which clients are available in a round, and how long the round takes on their devices.

A client is away if it drops out (at random, ``fleet.dropout`` and ``fleet.availability``), if its
device is predicted to take too long, upload included (``fleet.late_after_seconds``), or if its node
was not connected when the round began (``fleet.replan``). A client that is away receives and
sends nothing in that round. A simulated round lasts as long as its slowest client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedplt.errors import ConfigError
from fedplt.federation.job import Job
from fedplt.federation.round_costs import RoundCosts
from fedplt.fleet import in_time
from fedplt.planning import Assignment
from fedplt.seeds import generator
from fedplt.server import Broadcast


@dataclass(frozen=True)
class Attendance:
    """Which clients are present, and which are away and why; each list in ascending order."""

    present: list[int]
    dropped: list[int]
    late: list[int]

    def of(self, clients: Collection[int]) -> Attendance:
        """The attendance of only these clients."""
        some = set(clients)
        parts = (self.present, self.dropped, self.late)
        return Attendance(*([client for client in part if client in some] for part in parts))


class Availability:
    """Decides per round which clients are present, and predicts how long they take."""

    def __init__(self, job: Job, costs: RoundCosts) -> None:
        self.job, self.settings, self._costs = job, job.config.fleet, costs
        self._predictions: tuple[int, NDArray[np.float64]] | None = None
        limit = self.settings.late_after_seconds if self.settings else None
        if limit is not None and not in_time(least := self.predicted(0).min(), limit):
            fastest = job.client_name(int(self.predicted(0).argmin()))
            problem = f"nobody finishes within {limit:g} s; the fastest, {fastest}, takes "
            raise ConfigError(f"{problem}{least:.3g} s. Raise it.", key="fleet.late_after_seconds")

    def attend(self, round: int) -> Attendance:
        """The attendance of all clients in this round, whether they are sampled or not."""
        settings, number = self.settings, self.job.plan.num_clients
        if settings is None or self.job.devices is None:
            return Attendance(list(range(number)), [], [])
        late = np.zeros(number, dtype=np.bool_)
        if settings.late_after_seconds is not None:
            seconds = self.predicted(round)
            late = np.array([not in_time(each, settings.late_after_seconds) for each in seconds])
        away: Any = settings.dropout  # the probability, of all clients or of each
        if available := self.job.devices.availability:
            away = 1 - (1 - away) * np.array(available[round % len(available)])
        draws = generator(self.job.config.seed, "dropout", round=round).random(number)
        dropped = ~late & (draws < away)
        dropped[list(self.job.devices.away)] = True
        parts = (~late & ~dropped, dropped, late)
        return Attendance(*(np.flatnonzero(part).tolist() for part in parts))

    def round_seconds(
        self, assignments: Mapping[int, Assignment], uploading: Collection[int], sent: Broadcast
    ) -> float:
        """Duration of a round in which these clients train and some upload (0: no ``[fleet]``)."""
        if self.settings is None:
            return 0.0
        some = set(uploading)
        seconds = self._costs.seconds
        times = (seconds(k, a, uploads=k in some, sent=sent) for k, a in assignments.items())
        return max((time.total for time in times), default=0.0)

    def predicted(self, round: int) -> NDArray[np.float64]:
        """Predicted seconds per client, upload included: who uploads may not be known yet."""
        plan = self.job.plan
        if not plan.costs_change:
            round = 0  # the slices may differ between rounds, their sizes do not
        if self._predictions is None or self._predictions[0] != round:
            assigned = plan.in_round(round)
            times = [self._costs.seconds(k, assigned[k]).total for k in range(plan.num_clients)]
            self._predictions = round, np.array(times)
        return self._predictions[1]
