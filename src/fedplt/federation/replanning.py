"""Replan the fleet between rounds when nodes join or leave (``fleet.replan``)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedplt.configuration import AnnouncedDevice
from fedplt.errors import ConfigError, UntrainedWarning
from fedplt.federation.assigned_devices import changed_devices, nominal_workload
from fedplt.federation.configured_plan import method_from_config
from fedplt.federation.engine import Engine, NodesEngine
from fedplt.federation.job import Job, memory_counter
from fedplt.fleet import DeviceProfile
from fedplt.methods import PlanRequest

Roster = Mapping[int, DeviceProfile]
"""The connected clients, and their devices."""
TENSOR = "fleet.roster"
COLUMNS = tuple(AnnouncedDevice.model_fields)


class ChangingFleet:
    """The roster of the current plan.

    The plan depends on nothing but the run's configuration and the roster, so a checkpoint stores
    only the roster.
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
        """The roster of the last committed round."""
        self._tried: tuple[Roster, Job] = {}, job

    def job_of_round(self) -> Job:
        """A job planned for the connected clients; if there are none, the last round's job."""
        return self._job_for(self.engine.roster() or self._tried[0])

    def _job_for(self, roster: Roster) -> Job:
        if roster != self._tried[0]:
            self._tried = roster, replanned(self.first, roster)
            _warn_of_gaps(self._tried[1], roster)
            self.engine.use(self._tried[1])
        return self._tried[1]

    def commit(self) -> dict[str, Any] | None:
        """Called when the round is committed: the new plan for its record, if it changed."""
        roster, job = self._tried
        if roster == self.roster:
            return None
        self.roster = roster
        ratios = {str(client): float(job.plan.ratios[client]) for client in sorted(roster)}
        return {"ratios": ratios, "plan": job.plan.fingerprint}

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint: a row per client, NaN for clients that are away."""
        table = torch.full((self.first.plan.num_clients, len(COLUMNS)), math.nan).double()
        for client, profile in self.roster.items():
            values = [getattr(profile, name) for name in COLUMNS]
            row = [math.nan if value is None else value for value in values]
            table[client] = torch.tensor(row, dtype=torch.float64)
        return {TENSOR: table}

    def restore(self, tensors: Mapping[str, Tensor]) -> Job:
        """The job of the last committed round."""
        roster = {}
        for client, row in enumerate(tensors[TENSOR].tolist()):
            if not math.isnan(row[0]):
                known = zip(COLUMNS, row, strict=True)
                values = {name: value for name, value in known if not math.isnan(value)}
                roster[client] = AnnouncedDevice(**values).profile(client)
        self.roster = roster
        return self._job_for(roster)


def replanned(job: Job, roster: Roster) -> Job:
    """The same run, planned for the connected clients."""
    known = (job.config, job.layers, len(job.samples), memory_counter(job))
    devices = changed_devices(job.config, roster, partial(nominal_workload, *known))
    request = PlanRequest(job.layers, devices.ratios, job.config.seed, job.plan.coupled_units)
    plan = method_from_config(job.config).full_plan(request)
    return replace(job, plan=plan, devices=devices)


def _warn_of_gaps(job: Job, roster: Roster) -> None:
    """Warn of sub-layers that none of the connected clients will train."""
    now, later = ([job.plan.assignment(k, round).slices for k in roster] for round in (0, 1))
    gaps = []
    for index, layer in enumerate(job.layers):
        rows = {row for slices in now for part in slices[index] for row in part}
        moves = any(a[index] and a[index] != b[index] for a, b in zip(now, later, strict=True))
        if len(rows) < layer.num_sublayers and not moves:  # rotation reaches the other rows later
            missing = layer.num_sublayers - len(rows)
            gaps.append(f"{layer.name} ({missing} of {layer.num_sublayers})")
    if gaps:
        warnings.warn(
            f"planned for the {len(roster)} clients that are there: until others join, nobody "
            f"trains some sub-layers of {', '.join(gaps)}.",
            UntrainedWarning,
            stacklevel=2,
        )
