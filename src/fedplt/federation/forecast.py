"""What a run will cost, told before it begins."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fedplt.federation.costs import RoundCosts
from fedplt.federation.job import Job
from fedplt.kernels import call_model, copy_model
from fedplt.planning import download_bytes, exact_flops, make_plan, safetensors_bytes
from fedplt.text import bytes_text, duration_text, flops_text

BATCH = 64
"""Examples of the timed step, where clients take all of theirs at once."""
STATES_ON_DISK = 4
"""Two checkpoints, the final model, and a file that is being written."""


@dataclass(frozen=True)
class Forecast:
    """Of a run; costs are per round."""

    rounds: int
    bytes_up: float
    bytes_down: float
    flops: float
    seconds: float
    """Of all rounds, with the simulator on this machine."""
    disk_bytes: int

    def summary(self, folder: Path) -> str:
        up, down = self.bytes_up, self.bytes_down
        place = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
        free = shutil.disk_usage(place).free
        return (
            f"a round: about {bytes_text(up)} up, {bytes_text(down)} down, "
            f"{flops_text(self.flops)}\n"
            f"{self.rounds} rounds: {bytes_text(self.rounds * up)} up, "
            f"{bytes_text(self.rounds * down)} down, {flops_text(self.rounds * self.flops)}, "
            f"about {duration_text(self.seconds)} here (from one timed batch), "
            f"{bytes_text(self.disk_bytes)} of {bytes_text(free)} free on disk"
        )


def forecast(job: Job) -> Forecast:
    """Expected costs, from the plan of the first round and one timed training step."""
    costs, config = RoundCosts(job), job.config
    number = job.plan.num_clients
    sampling = config.sampling
    assignments = [job.plan.assignment(client, 1) for client in range(number)]
    ups = [safetensors_bytes("update", given.update_size) for given in assignments]
    total = costs.of_round(dict(enumerate(assignments)), 0, 0)
    part = 1.0
    if not sampling.by_norm:
        part = sampling.probability or (sampling.num_clients or number) / number
    up = part * sum(ups)
    if sampling.by_norm and sampling.budget is not None:
        whole = max(download_bytes(given) for given in assignments)
        each = whole if sampling.in_models else sum(ups) / number
        up = min(sampling.budget * each, sum(ups))
        if sampling.norms == "last":
            part = min(1.0, up / sum(ups))
    flops, down = part * total.flops, part * total.bytes_down
    state = 4 * job.layers.state_size
    copies = STATES_ON_DISK + (config.diagnostics.window if config.diagnostics.enabled else 0)
    workers = min(config.engine.workers or os.cpu_count() or 1, number)
    everything = exact_flops(make_plan(job.layers, [1.0]).assignment(0))
    judged = everything.forward * len(job.validation) / config.evaluation.every
    speed = _flops_per_second(job, everything.total)
    seconds = config.rounds * (flops + judged) / speed / workers
    return Forecast(config.rounds, up, down, flops, seconds, copies * state)


def _flops_per_second(job: Job, flops: int) -> float:
    """Of one thread that trains the whole model; the second of two steps is timed."""
    model, threads = copy_model(job.model), torch.get_num_threads()
    number = min(job.training.batch_size or BATCH, len(job.samples))
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
