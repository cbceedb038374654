"""The costs of a round (bytes, FLOPs), and the times of its devices."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from fedplt.federation.job import Job
from fedplt.federation.run_folder.folder import RunFolder
from fedplt.federation.run_folder.records import Totals
from fedplt.federation.run_folder.sealed import checked, read_json
from fedplt.fleet import RoundTime, Work, round_time
from fedplt.planning import (
    Assignment,
    Flops,
    download_bytes,
    exact_flops,
    paper_flops_of,
    sublayers_assignment,
    upload_bytes,
)
from fedplt.server import Broadcast


class RoundCosts:
    """Computes the costs of rounds; caches the FLOPs of assignments of the same size."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._flops: dict[Hashable, Flops] = {}

    def of_round(
        self,
        assignments: Mapping[int, Assignment],
        bytes_up: int,
        bytes_down: int,
        sent: Broadcast | None = None,
    ) -> Totals:
        """The costs of a round in which these clients received the model and trained.

        ``sent``: what the clients of this round receive; None: the same as in most rounds.
        """
        flops, paper = 0, 0.0
        for client, assignment in assignments.items():
            seen = self.job.examples_seen(client)
            flops += seen * self.flops(assignment).total
            paper += paper_flops_of(assignment, seen)
            bytes_down += self._download(client, assignment, sent)
        return Totals(bytes_up, bytes_down, flops, paper)

    def seconds(
        self,
        client: int,
        assignment: Assignment,
        *,
        uploads: bool = True,
        uncut: bool = False,
        sent: Broadcast | None = None,
    ) -> RoundTime:
        """A client's round time (``uncut``: as if the planner had not cut its local steps)."""
        assert self.job.devices is not None
        examples, each = self.job.examples_seen(client, uncut=uncut), self.flops(assignment)
        work = Work(
            examples * each.forward,
            examples * (each.total - each.forward),
            self._download(client, assignment, sent),
            upload_bytes(assignment, self.job.config.messages.up) if uploads else 0,
        )
        return round_time(self.job.devices.profiles[client], work)

    def _download(self, client: int, assignment: Assignment, sent: Broadcast | None) -> int:
        down = self.job.config.messages.down if sent is None else sent.encoding_of(client)
        return download_bytes(assignment, down)

    def flops(self, assignment: Assignment) -> Flops:
        """FLOPs per example; they depend on how many rows of each layer are trained, not which."""
        key = assignment.cost_key
        if key not in self._flops:
            self._flops[key] = exact_flops(assignment)
        return self._flops[key]


DEVICES_FILE = "devices.json"


@dataclass(frozen=True)
class DeviceTimes:
    """A kind of device: its clients, and the round times of the one with the most examples."""

    name: str
    clients: Sequence[int]
    ratio: float
    """The fraction of the model that this client trains."""
    planned: RoundTime
    full: RoundTime
    """The round time for the whole model with all local steps."""


_DEVICES = TypeAdapter(Annotated[list[DeviceTimes], Field(min_length=1)])


def write_devices(folder: RunFolder, job: Job) -> None:
    """Write ``devices.json``: the devices in the order of their first clients, if there are any."""
    if job.devices is None:
        return
    costs, plan = RoundCosts(job), job.plan
    whole = sublayers_assignment(plan.layers, plan.layers.num_sublayers)
    clients: dict[str, list[int]] = {}
    for client, profile in enumerate(job.devices.profiles):
        clients.setdefault(profile.name, []).append(client)
    found = []
    for name, members in clients.items():
        busiest = max(members, key=job.examples_seen)
        part = plan.assignment(busiest)
        planned, full = costs.seconds(busiest, part), costs.seconds(busiest, whole, uncut=True)
        found.append(asdict(DeviceTimes(name, members, part.ratio, planned, full)))
    folder.write_json(DEVICES_FILE, {"devices": found})


def read_devices(folder: Path, run: str) -> list[DeviceTimes]:
    """The devices of a run on disk; empty if it has none. ``run`` is the run's id."""
    path = folder / DEVICES_FILE
    return checked(_DEVICES, read_json(path, run).get("devices"), path) if path.exists() else []
