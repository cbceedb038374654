"""The devices of a run, and how long a round takes them: planned, and with the whole model.

``devices.json`` is written for the readers of a run: its report names clients by their devices.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from fedplt.federation.costs import RoundCosts
from fedplt.federation.job import Job
from fedplt.federation.run_folder.sealed import (
    damaged_field,
    open_json,
    read_sealed,
    saying,
    seal_json,
)
from fedplt.files import write_text
from fedplt.fleet import RoundTime, round_time
from fedplt.planning import Assignment, sublayers_assignment

DEVICES_FILE = "devices.json"
KIND = "devices"


@dataclass(frozen=True)
class DeviceTimes:
    """A kind of device: its clients, and the round times of the one with the most examples."""

    name: str
    clients: Sequence[int]
    ratio: float
    """Trained fraction of the model of that client."""
    planned: RoundTime
    full: RoundTime
    """If it trained the whole model, with all local steps."""


_DEVICES = TypeAdapter(Annotated[list[DeviceTimes], Field(min_length=1)])


def device_times(job: Job) -> list[DeviceTimes]:
    """The devices of a job, in the order of their first clients; empty without ``[fleet]``."""
    if job.devices is None:
        return []
    costs, plan = RoundCosts(job), job.plan
    whole = sublayers_assignment(plan.layers, plan.layers.num_sublayers)

    def time(client: int, assignment: Assignment, *, uncut: bool = False) -> RoundTime:
        assert job.devices is not None
        return round_time(job.devices.profiles[client], costs.work(client, assignment, uncut=uncut))

    clients: dict[str, list[int]] = {}
    for client, profile in enumerate(job.devices.profiles):
        clients.setdefault(profile.name, []).append(client)
    found = []
    for name, members in clients.items():
        busiest = max(members, key=job.examples_seen)
        part = plan.assignment(busiest)
        planned, full = time(busiest, part), time(busiest, whole, uncut=True)
        found.append(DeviceTimes(name, members, part.ratio, planned, full))
    return found


def write_devices(folder: Path, run: str, job: Job) -> None:
    """Write ``devices.json``, if the run has devices; ``run`` is its id."""
    if devices := device_times(job):
        path, values = folder / DEVICES_FILE, {"devices": [asdict(device) for device in devices]}
        with saying(path):
            write_text(path, seal_json(values, run, KIND))


def read_devices(folder: Path, run: str) -> list[DeviceTimes]:
    """The devices of a run on disk; empty if it has none."""
    path = folder / DEVICES_FILE
    if not path.exists():
        return []
    values = open_json(read_sealed(path), KIND, path, run).get("devices")
    try:  # strict mode reads JSON alone
        return _DEVICES.validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise damaged_field(path, error) from None
