"""Strategies for a fleet of unequal devices, each as a configuration.

All have the same data, model, seeds and settings. They differ in the method, in what each device
trains, and in which devices take part. A device without enough memory never takes part.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedplt.client import MemoryCounter
from fedplt.configuration import RunConfig, read_availability, read_fleet
from fedplt.data import TrainingData, first_examples
from fedplt.errors import ConfigError, FedpltError, FleetError
from fedplt.federation import Job, make_job, memory_counter, nominal_workload, plan_from_config
from fedplt.files import write_text
from fedplt.fleet import (
    DeviceProfile,
    ExactWorkload,
    FleetPlan,
    FleetTarget,
    Work,
    in_time,
    plan_fleet,
    round_time,
)
from fedplt.planning import Assignment, download_bytes, exact_flops, upload_bytes
from fedplt_compare.compare import variant

WAITS, WITHOUT, RECOMMENDED = "fedavg-all", "fedavg-without-slow", "fedplt-recommended"
TITLES = {
    WAITS: "FedAvg, waits for all",
    WITHOUT: "FedAvg, without slow devices",
    "fedavg-fewer-steps": "FedAvg, fewer steps on slow devices",
    "fedpmt": "FedPMT",
    "heterofl": "HeteroFL",
    "fedplt": "FedPLT, as planned",
    RECOMMENDED: "FedPLT, recommended",
}
FEDAVG = {"name": "fedavg"}
RATIOS = 40
"""Number of ratios tried to find what a device can afford with FedPMT and HeteroFL."""


@dataclass(frozen=True)
class Strategy:
    """A strategy, as sections that replace those of the configuration."""

    label: str
    sections: Mapping[str, Any]
    excluded: tuple[str, ...] = ()
    """Devices that never take part: they lack the memory, or cannot meet the deadline."""

    @property
    def title(self) -> str:
        return TITLES[self.label]


@dataclass(frozen=True)
class Setting:
    """The user's run and fleet: what all strategies share."""

    config: RunConfig
    """The user's configuration with the fleet's number of clients."""
    devices: tuple[DeviceProfile, ...]
    job: Job
    """The job of FedAvg with the first seed, for the model and the data."""
    workload: ExactWorkload
    counter: MemoryCounter
    plan: FleetPlan
    """FedPLT's plan of the fleet."""

    @property
    def deadline(self) -> float:
        return self.plan.target_seconds

    def plan_at(self, seconds: float, workload: ExactWorkload | None = None) -> FleetPlan:
        """FedPLT's plan for another deadline, or for other work in a round."""
        target = self.plan.target.model_dump(exclude={"deadline_seconds", "percentile"})
        work = workload or self.workload
        return plan_fleet(self.devices, work, deadline_seconds=seconds, **target)

    @property
    def slow(self) -> tuple[str, ...]:
        """Devices that cannot train the whole model within the deadline, or not at all."""
        return tuple(
            entry.device.name
            for entry in self.plan.devices
            if not (in_time(entry.full.total, self.deadline) and self.has_memory(entry.device))
        )

    def has_memory(self, device: DeviceProfile, assignment: Assignment | None = None) -> bool:
        """Whether a device has the memory to train this assignment (None: the whole model).

        Micro-batches may be used: they change neither the result (up to rounding) nor the time.
        """
        if device.memory_bytes is None:
            return True
        sizes, batch = self.workload.part_sizes, self.workload.batch_size
        assignment = assignment or self.job.plan.assignment(0)
        needs = (self.counter.peak(assignment, batch, size) for size in (sizes[0], sizes[-1]))
        return min(needs) <= device.memory_bytes


def make_setting(
    config: RunConfig, devices: str | Path, data: TrainingData, model: Any, deadline: float | None
) -> Setting:
    """Plan the fleet for this run: FedPLT's ratios and the deadline of all strategies."""
    file = read_fleet(Path(devices))
    if config.clients.learning_rates or any(g.learning_rate for g in config.clients.groups):
        raise ConfigError(
            "the clients are the devices of the fleet, so that learning rates of groups and "
            "clients have no meaning. Set training.learning_rate instead.",
            key="clients",
        )
    if config.evaluation.stop_after is not None:
        raise ConfigError(
            "strategies are compared after the same time, and none may end earlier. Leave it out.",
            key="evaluation.stop_after",
        )
    number = sum(device.count for device in file.devices)
    fleet: dict[str, Any] = {}
    if config.fleet is not None:
        fleet = config.fleet.model_dump(exclude_none=True, mode="json")
    given = fleet or file.target.model_dump(exclude_none=True)
    target: dict[str, Any] = {k: given[k] for k in FleetTarget.model_fields if k in given}
    if deadline is not None:
        target.pop("percentile", None)
        target["deadline_seconds"] = deadline
    shared: dict[str, Any] = {k: fleet[k] for k in ("dropout", "availability") if k in fleet}
    path = str(Path(devices).absolute()) if Path(devices).is_file() else str(devices)
    fleet = {"devices": path, **target, **shared}
    sections = {"clients": {"num_clients": number}, "fleet": fleet}
    base = variant(config, config.name, sections, config.seed)
    job = make_job(variant(base, WAITS, {"method": FEDAVG}, base.seed), model, data)
    counter = memory_counter(job)
    workload = nominal_workload(base, job.layers, len(data.train), counter)
    plan = plan_fleet(file.devices, workload, **target)
    return Setting(base, file.devices, job, workload, counter, plan)


def strategies_of(setting: Setting) -> tuple[list[Strategy], dict[str, str]]:
    """The strategies that make sense for this fleet; for others the reason, by title."""
    assert setting.config.fleet is not None
    target = {"percentile": None, "deadline_seconds": setting.deadline}
    planned = setting.config.fleet.model_copy(update=target)
    fleet = planned.model_dump(exclude_none=True, mode="json")
    without_memory = tuple(d.name for d in setting.devices if not setting.has_memory(d))
    found = [Strategy(WAITS, {"method": FEDAVG, "fleet": fleet}, without_memory)]
    skipped: dict[str, str] = {}
    if len(without_memory) == len(setting.devices):
        skipped[found.pop().title] = "no device has the memory for the whole model"
    slow, recommended = setting.slow, _fedplt(setting, RECOMMENDED, fleet, preset="recommended")
    if not slow:
        same = "the same as waiting for all: every device trains the whole model in time"
        skipped |= {
            title: same for label, title in TITLES.items() if label not in (WAITS, RECOMMENDED)
        }
        return [*found, recommended], skipped
    if len(slow) == len(setting.devices):
        reason = f"no device can train the whole model in {setting.deadline:.3g} s"
        skipped[TITLES[WITHOUT]] = reason
    else:
        limit = {**fleet, "late_after_seconds": setting.deadline}
        found.append(Strategy(WITHOUT, {"method": FEDAVG, "fleet": limit}, without_memory))
    cut = plan_fleet(
        setting.devices, setting.workload,
        deadline_seconds=setting.deadline, min_ratio=1.0, may_cut_steps=True,
    )  # fmt: skip
    if any(entry.traded for entry in cut.devices):
        late = tuple(entry.device.name for entry in cut.late)
        fewer = {**fleet, "min_ratio": 1.0, "may_cut_steps": True, "may_freeze": False}
        found.append(Strategy("fedavg-fewer-steps", {"method": FEDAVG, "fleet": fewer}, late))
    else:
        skipped[TITLES["fedavg-fewer-steps"]] = (
            "not even one step with the whole model is possible for a slow device"
        )
    for name in ("fedpmt", "heterofl"):
        try:
            found.append(_at_affordable_ratios(setting, fleet, name))
        except FedpltError as error:
            skipped[TITLES[name]] = str(error)
    return [*found, _fedplt(setting, "fedplt", fleet), recommended], skipped


def _fedplt(setting: Setting, label: str, fleet: Mapping[str, Any], **options: Any) -> Strategy:
    """FedPLT with the configuration's options, if any, and these options."""
    own = setting.config.method
    method = {**(own if own["name"] == "fedplt" else {"name": "fedplt"}), **options}
    sections = {"method": method, "fleet": fleet}
    # The recommended preset sends smaller messages: more devices may meet the deadline.
    messages = variant(setting.config, label, sections, setting.config.seed).messages
    workload = replace(setting.workload, up=messages.up, down=messages.down)
    plan = setting.plan_at(setting.deadline, workload)
    return Strategy(label, sections, tuple(entry.device.name for entry in plan.late))


def _at_affordable_ratios(setting: Setting, fleet: Mapping[str, Any], name: str) -> Strategy:
    """Give every device the largest ratio that meets the deadline and fits into its memory."""
    least = setting.plan.target.min_ratio
    tried = np.geomspace(least, 1.0, RATIOS).tolist()
    sections: dict[str, Any] = {"method": {"name": name}}
    config = variant(setting.config, name, sections, setting.config.seed)
    config = config.model_copy(update={"fleet": None})
    plan, _ = plan_from_config(config, setting.job.model, example_of(setting.job), tried)
    full = setting.workload.local_steps * setting.workload.batch_size
    seen = min(full, setting.workload.num_examples or full)
    parts = [plan.assignment(index) for index in range(len(tried))]
    works = []
    for part in parts:
        flops = exact_flops(part)
        forward, backward = seen * flops.forward, seen * (flops.total - flops.forward)
        down = download_bytes(part, config.messages.down)
        works.append(Work(forward, backward, down, upload_bytes(part, config.messages.up)))
    groups, excluded = [], []
    for device in setting.devices:
        fits = [
            ratio
            for ratio, part, work in zip(tried, parts, works, strict=True)
            if in_time(round_time(device, work).total, setting.deadline)
            and setting.has_memory(device, part)
        ]
        excluded += [] if fits else [device.name]
        groups.append({"num_clients": device.count, "ratio": max(fits, default=least)})
    if len(excluded) == len(setting.devices):
        raise FleetError(f"no device can train any ratio in {setting.deadline:.3g} s")
    kept = {k: v for k, v in fleet.items() if k not in FleetTarget.model_fields}
    clients = {"num_clients": setting.config.clients.num_clients, "groups": groups}
    sections |= {"fleet": {**kept, "ratios": "groups"}, "clients": clients}
    return Strategy(name, sections, tuple(excluded))


def example_of(job: Job) -> Any:
    return first_examples(job.validation)[0]


def with_exclusions(strategy: Strategy, setting: Setting, out: Path) -> Strategy:
    """Write a file, beside the runs, that gives devices that never take part availability 0."""
    if not strategy.excluded:
        return strategy
    names = [device.name for device in setting.devices]
    given = strategy.sections["fleet"].get("availability")
    rows = read_availability(Path(given), names) if given else ((1.0,) * len(names),)
    takes_part = [float(name not in strategy.excluded) for name in names]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [names, *np.multiply(rows, takes_part).tolist()]
    )
    path = out / f"{strategy.label}-availability.csv"
    write_text(path, text.getvalue())
    fleet = {**strategy.sections["fleet"], "availability": str(path.absolute())}
    return replace(strategy, sections={**strategy.sections, "fleet": fleet})


def job_of(setting: Setting, config: RunConfig) -> Job:
    """The job of a strategy: its plan and devices, with the setting's model and data."""
    job = setting.job
    plan, devices = plan_from_config(
        config, job.model, example_of(job), num_examples=len(job.samples)
    )
    return replace(job, config=config, plan=plan, devices=devices)
