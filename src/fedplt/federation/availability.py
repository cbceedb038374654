"""Which clients are available in a round, and how long the round takes on their devices.

A client is away if it drops out (at random, ``fleet.dropout`` and ``fleet.availability``), if its
device is predicted to take too long, upload included (``fleet.late_after_seconds``), or if its node
was not connected when the round began (``fleet.replan``). A client that is away receives and
sends nothing in that round. A simulated round lasts as long as its slowest client.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedplt.configuration import AnnouncedDevice
from fedplt.errors import ConfigError, UntrainedWarning
from fedplt.federation.costs import RoundCosts
from fedplt.federation.engine import Engine, NodesEngine
from fedplt.federation.fleet import changed_devices, nominal_workload
from fedplt.federation.job import Job, memory_counter
from fedplt.federation.planning import method_from_config
from fedplt.fleet import DeviceProfile, in_time
from fedplt.methods import PlanRequest
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
        """Seconds of a round in which these clients train and some upload (0: no ``[fleet]``)."""
        if self.settings is None:
            return 0.0
        some = set(uploading)
        seconds = self._costs.seconds
        times = (seconds(k, a, uploads=k in some, sent=sent) for k, a in assignments.items())
        return max((time.total for time in times), default=0.0)

    def predicted(self, round: int) -> NDArray[np.float64]:
        """Predicted seconds of each client, upload included: sampling may come later."""
        plan = self.job.plan
        if not plan.costs_change:
            round = 0  # other slices may be trained, but of the same size in every round
        if self._predictions is None or self._predictions[0] != round:
            assigned = plan.in_round(round)
            times = [self._costs.seconds(k, assigned[k]).total for k in range(plan.num_clients)]
            self._predictions = round, np.array(times)
        return self._predictions[1]


Roster = Mapping[int, DeviceProfile]
"""The clients that are there, and their devices."""
TENSOR = "fleet.roster"
COLUMNS = tuple(AnnouncedDevice.model_fields)


class ChangingFleet:
    """The roster that the plan in force was made for.

    The plan depends on nothing but the run's configuration and the roster, so that a checkpoint
    holds the roster alone.
    """

    def __init__(self, job: Job, engine: Engine) -> None:
        if not isinstance(engine, NodesEngine):
            raise ConfigError(
                f"{type(engine).__name__} does not know which nodes are connected. Leave it out, "
                "or use an engine with roster() and use().",
                key="fleet.replan",
            )
        self.first, self.engine = job, engine
        self.roster: Roster = {}
        """Of the last round that counts."""
        self._tried: tuple[Roster, Job] = {}, job

    def job_of_round(self) -> Job:
        """Planned for the clients that are there now; if nobody is, as in the last round."""
        return self._job_for(self.engine.roster() or self._tried[0])

    def _job_for(self, roster: Roster) -> Job:
        if roster != self._tried[0]:
            self._tried = roster, replanned(self.first, roster)
            _warn_of_gaps(self._tried[1], roster)
            self.engine.use(self._tried[1])
        return self._tried[1]

    def commit(self) -> dict[str, Any] | None:
        """The round counts; return what is new in its record, if it was planned anew."""
        roster, job = self._tried
        if roster == self.roster:
            return None
        self.roster = roster
        ratios = {str(client): float(job.plan.ratios[client]) for client in sorted(roster)}
        return {"ratios": ratios, "plan": job.plan.fingerprint}

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint: a row per client, NaN for those that are away."""
        table = torch.full((self.first.plan.num_clients, len(COLUMNS)), math.nan).double()
        for client, profile in self.roster.items():
            values = [getattr(profile, name) for name in COLUMNS]
            row = [math.nan if value is None else value for value in values]
            table[client] = torch.tensor(row, dtype=torch.float64)
        return {TENSOR: table}

    def restore(self, tensors: Mapping[str, Tensor]) -> Job:
        """The job of the last round that counts."""
        roster = {}
        for client, row in enumerate(tensors[TENSOR].tolist()):
            if not math.isnan(row[0]):
                known = zip(COLUMNS, row, strict=True)
                values = {name: value for name, value in known if not math.isnan(value)}
                roster[client] = AnnouncedDevice(**values).profile(client)
        self.roster = roster
        return self._job_for(roster)


def replanned(job: Job, roster: Roster) -> Job:
    """The same run, planned for the clients that are there."""
    known = (job.config, job.layers, len(job.samples), memory_counter(job))
    devices = changed_devices(job.config, roster, partial(nominal_workload, *known))
    request = PlanRequest(job.layers, devices.ratios, job.config.seed, job.plan.coupled_units)
    plan = method_from_config(job.config).full_plan(request)
    return replace(job, plan=plan, devices=devices)


def _warn_of_gaps(job: Job, roster: Roster) -> None:
    """Warn of sub-layers that none of the clients that are there will train."""
    now, later = ([job.plan.assignment(k, round).slices for k in roster] for round in (0, 1))
    gaps = []
    for index, layer in enumerate(job.layers):
        rows = {row for slices in now for part in slices[index] for row in part}
        moves = any(a[index] and a[index] != b[index] for a, b in zip(now, later, strict=True))
        if len(rows) < layer.num_sublayers and not moves:  # moving rows reach all others in time
            missing = layer.num_sublayers - len(rows)
            gaps.append(f"{layer.name} ({missing} of {layer.num_sublayers})")
    if gaps:
        warnings.warn(
            f"planned for the {len(roster)} clients that are there: until others join, nobody "
            f"trains some sub-layers of {', '.join(gaps)}.",
            UntrainedWarning,
            stacklevel=2,
        )
