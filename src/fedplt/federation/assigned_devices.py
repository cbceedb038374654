"""Device profiles in a run: the device of each client, and the ratio planned for it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from fedplt.client import MEANS, MemoryCounter, batch_statistics
from fedplt.configuration import (
    ON_NODES,
    Chances,
    ClientsConfig,
    FleetConfig,
    RunConfig,
    WorkConfig,
    read_availability,
    read_fleet,
)
from fedplt.cutting import example_model
from fedplt.data import CATALOG
from fedplt.errors import ConfigError, FleetError
from fedplt.fleet import (
    DeviceProfile,
    ExactWorkload,
    FleetPlan,
    FleetTarget,
    PaperWorkload,
    Workload,
    plan_fleet,
    planned_share,
)
from fedplt.planning import Allocation, Layers

Value = TypeVar("Value")
MakeWorkload = Callable[[], ExactWorkload]
"""Computes the workload of a client's round, if the ratios are planned from it."""
UNKNOWN = DeviceProfile("unknown", 1e9, 1e6, 1e6)
"""Stands for the device of a client that is away; nothing is predicted for it."""


@dataclass(frozen=True)
class ClientDevices:
    """The device profile of each client."""

    profiles: tuple[DeviceProfile, ...]
    plan: FleetPlan | None = None
    """The fleet plan, if the ratios were planned from the devices."""
    ratios: tuple[float | Allocation, ...] = ()
    local_steps: tuple[int | None, ...] = ()
    """Local steps per client, if the planner cut them for slow devices."""
    micro_batches: tuple[int | None, ...] = ()
    """Micro-batches per client, if the planner splits batches for devices with little memory."""
    away: frozenset[int] = frozenset()
    """Clients whose nodes were not connected when the fleet was planned (``fleet.replan``)."""
    availability: Chances | None = None
    """Each client's probability of being available, per round; repeats after the last entry."""

    @property
    def fingerprint(self) -> str:
        """Digest of all devices: simulated times and late clients depend on them."""
        profiles = [asdict(profile) for profile in self.profiles]
        for profile in profiles:
            del profile["watts"]  # affects neither times nor late clients
        text = repr(profiles) + (repr(self.availability) if self.availability else "")
        return f"{zlib.crc32(text.encode()):08x}"


def client_devices(config: RunConfig, workload: MakeWorkload) -> ClientDevices | None:
    """The clients' devices from ``[fleet]``, with planned ratios if it asks for them."""
    settings = config.fleet
    if settings is None:
        return None
    try:
        if settings.ratios == "groups":
            clients = ClientDevices(_by_group(config.clients, settings))
        elif config.clients.groups != ClientsConfig().groups:
            raise FleetError(
                "the ratios are planned from the devices, but clients.groups sets them too. Leave "
                "out the groups, or set fleet.ratios = 'groups'."
            )
        elif settings.replan == "on-change":
            return changed_devices(config, {}, workload)
        else:
            devices = _devices(settings)
            number, wanted = sum(device.count for device in devices), config.clients.num_clients
            if number != wanted:
                raise FleetError(
                    f"{settings.devices} has {number} devices (counts added up), but "
                    f"clients.num_clients is {wanted}. Make them equal."
                )
            clients = _planned(devices, settings, workload())
    except FleetError as error:
        raise ConfigError(str(error), key="fleet.devices") from error
    if settings.availability is None:
        return clients
    try:
        names = [profile.name for profile in clients.profiles]
        chances = read_availability(Path(settings.availability), names)
    except FleetError as error:
        raise ConfigError(str(error), key="fleet.availability") from error
    return replace(clients, availability=chances)


def _by_group(clients: ClientsConfig, settings: FleetConfig) -> tuple[DeviceProfile, ...]:
    devices, sizes = read_fleet(Path(settings.devices)).devices, clients.group_sizes()
    if len(devices) != len(sizes):
        raise FleetError(
            f"fleet.ratios = 'groups' needs one device per group, in the same order: there are "
            f"{len(devices)} devices and {len(sizes)} clients.groups."
        )
    return tuple(d for d, size in zip(devices, sizes, strict=True) for _ in range(size))


def _devices(settings: FleetConfig) -> tuple[DeviceProfile, ...]:
    """The devices in the file, or those that the nodes have announced."""
    if settings.devices != ON_NODES:
        return read_fleet(Path(settings.devices)).devices
    if settings.announced is None:
        raise FleetError(
            "the devices are the nodes' ('nodes'): give what each client's device can do in "
            "fleet.announced (a deployment learns it when its nodes join)."
        )
    return tuple(each.profile(client) for client, each in enumerate(settings.announced))


def changed_devices(
    config: RunConfig, there: Mapping[int, DeviceProfile], workload: MakeWorkload
) -> ClientDevices:
    """Plan the connected clients as one fleet; others train nothing."""
    assert config.fleet is not None
    number, minimum = config.clients.num_clients, config.fleet.min_ratio
    place = {client: index for index, client in enumerate(sorted(there))}
    found = ClientDevices(())
    if there:
        found = _planned(tuple(there[k] for k in place), config.fleet, workload())

    def by_client(values: tuple[Value, ...], absent: Value) -> tuple[Value, ...]:
        return tuple(values[place[k]] if k in place else absent for k in range(number))

    return ClientDevices(
        by_client(found.profiles, UNKNOWN), found.plan, by_client(found.ratios, minimum),
        by_client(found.local_steps, None), by_client(found.micro_batches, None),
        away=frozenset(range(number)) - there.keys(),
    )  # fmt: skip


def _planned(
    devices: tuple[DeviceProfile, ...], settings: FleetConfig, workload: ExactWorkload
) -> ClientDevices:
    """Each device's share of the model, as the fleet planner plans it."""
    target = settings.model_dump(include=set(FleetTarget.model_fields))
    plan, steps = plan_fleet(devices, workload, **target), workload.local_steps
    everybody = [entry for entry in plan.devices for _ in range(entry.device.count)]
    return ClientDevices(
        tuple(entry.device for entry in everybody),
        plan,
        tuple(planned_share(workload.layers, e.ratio, e.frozen_layers) for e in everybody),
        tuple(e.local_steps if e.local_steps < steps else None for e in everybody),
        tuple(entry.micro_batch for entry in everybody),
    )


def workload_from_config(work: WorkConfig) -> Workload:
    """The workload of a client's round, from ``[work]`` in a device file."""
    size = work.num_parameters
    if size is None:
        model, example, layers = example_model(work.model, work.options, work.shape)
        if work.cost == "exact":
            exact = ExactWorkload(layers, work.local_steps, work.batch_size)
            return with_memory(exact, MemoryCounter(model, example))
        size = layers.size
    return PaperWorkload(size, work.local_steps, work.batch_size, work.bytes_per_parameter)


def with_memory(workload: ExactWorkload, counter: MemoryCounter | None) -> ExactWorkload:
    """The workload with its memory counted; batches may be split to save memory."""
    if counter is None:
        return workload
    own = counter.training.settings.micro_batch
    # Other losses may not be means over the examples.
    may_split = counter.training.loss in MEANS or own is not None
    may_split &= not batch_statistics(counter.model)
    return replace(workload, peak=counter.peak, may_split=may_split, micro_batch=own)


def nominal_workload(
    config: RunConfig,
    layers: Layers,
    num_examples: int | None = None,
    counter: MemoryCounter | None = None,
) -> ExactWorkload:
    """The workload before the data is split: assumes equally many examples per client.

    ``num_examples`` is the total over all clients; it is known for built-in data sets.
    """
    settings = config.training
    if num_examples is None and config.data.name in CATALOG:
        num_examples = CATALOG[config.data.name].num_train
    if settings.local_steps is not None and settings.batch_size != "full":
        workload = ExactWorkload(layers, settings.local_steps, settings.batch_size)
    elif num_examples is None:
        raise ConfigError(
            f"the work of a round depends on the unknown size of {config.data.name!r}. "
            "Set training.local_steps and training.batch_size.",
            key="training",
        )
    else:
        each = -(-num_examples // config.clients.num_clients)  # largest part of an even split
        seen = settings.examples_seen(each) if settings.local_steps is None else None
        workload = ExactWorkload(layers, settings.num_steps(each), settings.batch_of(each), seen)
    workload = replace(workload, up=config.messages.up, down=config.messages.down)
    return with_memory(workload, counter)
