"""Estimate what a whole run costs, before it starts: bytes, FLOPs, time, disk and memory."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedplt.configuration import SamplingConfig
from fedplt.federation.job import Job
from fedplt.federation.round_costs import RoundCosts
from fedplt.federation.run_folder.records import Totals
from fedplt.models import call_model, copy_model
from fedplt.planning import BYTES_PER_NUMBER, download_bytes, exact_flops, make_plan, upload_bytes
from fedplt.text import bytes_text, counted, duration_text, flops_text

BATCH = 64
"""Batch size of the timed step if ``batch_size = "full"``."""
STATES_ON_DISK = 4
"""Two checkpoints, the final model, and one file while it is being written."""
MOST_CLIENTS = 1000
"""Larger fleets are estimated from this many evenly spaced clients."""
MOST_ROUNDS = 20
"""Plans whose costs change are estimated from this many evenly spaced rounds."""


@dataclass(frozen=True)
class Forecast:
    """The expected costs of a run, per round unless a field says otherwise."""

    rounds: int
    bytes_up: float
    bytes_down: float
    flops: float
    seconds: float
    """Time of all rounds with the simulator on this machine."""
    disk_bytes: int
    memory_bytes: int = 0
    """Upper bound of the server's memory of updates (``server.memory``)."""

    def summary(self, folder: Path) -> str:
        up, down, memory = self.bytes_up, self.bytes_down, self.memory_bytes
        return (
            f"a round: about {bytes_text(up)} up, {bytes_text(down)} down, "
            f"{flops_text(self.flops)}\n"
            f"{counted(self.rounds, 'round')}: {bytes_text(self.rounds * up)} up, "
            f"{bytes_text(self.rounds * down)} down, {flops_text(self.rounds * self.flops)}, "
            f"about {duration_text(self.seconds)} here (from one timed batch), "
            f"{bytes_text(self.disk_bytes)} on disk{self._free(folder)}"
            + (f"\n{memory_text(memory)}" if memory else "")
        )

    def _free(self, folder: Path) -> str:
        """Free space on the folder's disk; some file systems do not report it."""
        place = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
        disk = shutil.disk_usage(place)
        if not disk.total:
            return ""
        free = f" ({bytes_text(disk.free)} free)"
        if self.disk_bytes <= disk.free:
            return free
        return f"{free}\nWARNING: the disk of {place} has too little space for this run."


def memory_text(num_bytes: int) -> str:
    """The size of the server's memory of updates, for messages."""
    return f"memory of updates: up to {bytes_text(num_bytes)} on the server"


def forecast(job: Job, workers: int) -> Forecast:
    """Expected costs, from the plan and one timed training step.

    ``workers``: the processes that train at the same time.
    """
    costs, config = RoundCosts(job), job.config
    number = job.plan.num_clients
    rounds = _spread(config.rounds, MOST_ROUNDS if job.plan.costs_change else 1)
    clients = _spread(number, MOST_CLIENTS // len(rounds))
    everybody, uploads, whole, up = Totals(), 0.0, 0, config.messages.up
    for round in rounds:
        assigned = job.plan.in_round(round)
        assignments = {client: assigned[client] for client in clients}
        everybody = everybody.plus(costs.of_round(assignments, 0, 0))
        uploads += sum(upload_bytes(part, up) for part in assignments.values())
        whole = max(whole, *(download_bytes(part, up) for part in assignments.values()))
    scale = number / len(clients) / len(rounds)
    train, bytes_up = _sampled(config.sampling, number, scale * uploads, whole)
    flops = scale * train * everybody.flops
    bytes_down = scale * train * everybody.bytes_down
    one = exact_flops(make_plan(job.layers, [1.0]).assignment(0))
    judged = one.forward * len(job.validation) / config.evaluation.every
    speed = _flops_per_second(job, one.total) * min(workers, number)
    seconds = config.rounds * (flops + judged) / speed
    copies = STATES_ON_DISK + (config.diagnostics.window if config.diagnostics.enabled else 0)
    copies += config.server.average is not None  # the run writes two models
    disk = copies * BYTES_PER_NUMBER * job.layers.state_size
    memory = config.server.memory
    remembered = memory.num_bytes(job.plan) if memory else 0
    disk += (4 if memory and memory.store == "disk" else 2) * remembered  # of the checkpoints
    return Forecast(config.rounds, bytes_up, bytes_down, flops, seconds, disk, remembered)


def _spread(number: int, most: int) -> list[int]:
    """At most ``most`` of the numbers below ``number``, evenly spaced, starting at 0."""
    return [int(i) for i in np.linspace(0, number - 1, min(number, most)).round()]


def _sampled(
    sampling: SamplingConfig, clients: int, uploads: float, model: int
) -> tuple[float, float]:
    """The fraction of the clients that train in a round, and the bytes that they upload.

    ``uploads``: the bytes of all clients; ``model``: those of the whole model.
    """
    if not sampling.by_norm:
        part = sampling.sampler.share(clients)
        return part, part * uploads
    each = model if sampling.in_models else uploads / clients
    sent = min((sampling.budget or 0.0) * each, uploads)
    return (sent / uploads if sampling.norms == "last" else 1.0), sent


def _flops_per_second(job: Job, flops: int) -> float:
    """Speed of one thread that trains the whole model; the second of two steps is timed."""
    model, threads = copy_model(job.model), torch.get_num_threads()
    size = job.training.settings.batch_size
    number = min(BATCH if size == "full" else size, len(job.samples))
    inputs, targets = job.samples.batch(torch.arange(number))
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            for _ in range(2):
                started = time.perf_counter()
                job.training.loss(call_model(model, inputs), targets).backward()
                seconds = time.perf_counter() - started
    finally:
        torch.set_num_threads(threads)
    return flops * number / max(seconds, 1e-9)
