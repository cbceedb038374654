"""Device profiles in a run: the device of each client, and the ratio planned for it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

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

UNKNOWN = DeviceProfile("unknown", 1e9, 1e6, 1e6)
"""Of a client that is away; nothing is predicted for it."""


@dataclass(frozen=True)
class ClientDevices:
    """The device profile of each client."""

    profiles: tuple[DeviceProfile, ...]
    plan: FleetPlan | None = None
    """The fleet plan, if the ratios were planned from the devices."""
    ratios: tuple[float | Allocation, ...] = ()
    local_steps: tuple[int | None, ...] = ()
    """Local steps per client, if the planner cut them for slow devices."""
    away: frozenset[int] = frozenset()
    """Clients whose nodes were not connected when the fleet was planned (``fleet.replan``)."""
    availability: Chances | None = None
    """The chance of each client to be there, in each round; then from the first one again."""

    @property
    def fingerprint(self) -> str:
        """Changes with any device: simulated times and late clients depend on the devices."""
        profiles = [asdict(profile) for profile in self.profiles]
        for profile in profiles:
            del profile["watts"]  # changes neither
        text = repr(profiles)
        if self.availability is not None:
            text += repr(self.availability)
        return f"{zlib.crc32(text.encode()):08x}"


def client_devices(
    config: RunConfig, layers: Layers, num_examples: int | None = None
) -> ClientDevices | None:
    """The clients' devices as ``[fleet]`` says, and their planned ratios if it asks for them."""
    settings = config.fleet
    if settings is None:
        return None
    try:
        if settings.replan == "on-change":
            _refuse_groups(config)
            return changed_devices(config, layers, {}, num_examples)
        if settings.devices == ON_NODES:
            return _planned(_announced(settings), config, settings, layers, num_examples)
        devices = read_fleet(Path(settings.devices)).devices
        if settings.ratios == "groups":
            clients = ClientDevices(_by_group(devices, config.clients))
        else:
            clients = _planned(devices, config, settings, layers, num_examples)
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


def _by_group(
    devices: tuple[DeviceProfile, ...], clients: ClientsConfig
) -> tuple[DeviceProfile, ...]:
    if len(devices) != len(clients.groups):
        raise FleetError(
            f"fleet.ratios = 'groups' needs one device per group, in the same order: there are "
            f"{len(devices)} devices and {len(clients.groups)} clients.groups."
        )
    sizes = clients.group_sizes()
    return tuple(d for d, size in zip(devices, sizes, strict=True) for _ in range(size))


def _announced(settings: FleetConfig) -> tuple[DeviceProfile, ...]:
    if settings.announced is None:
        raise FleetError(
            "the devices are the nodes' ('nodes'): give what each client's device can do in "
            "fleet.announced (a deployment learns it when its nodes join)."
        )
    return tuple(each.profile(client) for client, each in enumerate(settings.announced))


def changed_devices(
    config: RunConfig,
    layers: Layers,
    there: Mapping[int, DeviceProfile],
    num_examples: int | None = None,
) -> ClientDevices:
    """The clients that are there, planned as a fleet of their own; others train nothing."""
    assert config.fleet is not None
    number, least = config.clients.num_clients, config.fleet.min_ratio
    clients = sorted(there)
    profiles = [UNKNOWN] * number
    ratios: list[float | Allocation] = [least] * number
    steps: list[int | None] = [None] * number
    plan = None
    if clients:
        fleet = tuple(there[client] for client in clients)
        found = _shares(fleet, config, config.fleet, layers, num_examples)
        plan = found.plan
        for index, client in enumerate(clients):
            profiles[client] = found.profiles[index]
            ratios[client], steps[client] = found.ratios[index], found.local_steps[index]
    away = frozenset(range(number)) - frozenset(clients)
    return ClientDevices(tuple(profiles), plan, tuple(ratios), tuple(steps), away)


def _planned(
    devices: tuple[DeviceProfile, ...],
    config: RunConfig,
    settings: FleetConfig,
    layers: Layers,
    num_examples: int | None,
) -> ClientDevices:
    _refuse_groups(config)
    number = sum(device.count for device in devices)
    if number != config.clients.num_clients:
        raise FleetError(
            f"{settings.devices} has {number} devices (counts added up), but clients.num_clients "
            f"is {config.clients.num_clients}. Make them equal."
        )
    return _shares(devices, config, settings, layers, num_examples)


def _refuse_groups(config: RunConfig) -> None:
    if config.clients.groups != ClientsConfig().groups:
        raise FleetError(
            "the ratios are planned from the devices, but clients.groups sets them too. Leave out "
            "the groups, or set fleet.ratios = 'groups'."
        )


def _shares(
    devices: tuple[DeviceProfile, ...],
    config: RunConfig,
    settings: FleetConfig,
    layers: Layers,
    num_examples: int | None,
) -> ClientDevices:
    """Each device's share of the model, as the fleet planner plans it."""
    workload = nominal_workload(config, layers, num_examples)
    target = settings.model_dump(include=set(FleetTarget.model_fields))
    plan = plan_fleet(devices, workload, **target)
    everybody = [entry for entry in plan.devices for _ in range(entry.device.count)]
    return ClientDevices(
        tuple(entry.device for entry in everybody),
        plan,
        tuple(planned_share(layers, entry.ratio, entry.frozen_layers) for entry in everybody),
        tuple(
            entry.local_steps if entry.local_steps < workload.local_steps else None
            for entry in everybody
        ),
    )


def workload_from_config(work: WorkConfig) -> Workload:
    """The workload of a client's round, from ``[work]`` in a device file."""
    size = work.num_parameters
    if size is None:
        _, _, layers = example_model(work.model, work.options, work.shape)
        if work.cost == "exact":
            return ExactWorkload(layers, work.local_steps, work.batch_size)
        size = layers.size
    return PaperWorkload(size, work.local_steps, work.batch_size, work.bytes_per_parameter)


def nominal_workload(
    config: RunConfig, layers: Layers, num_examples: int | None = None
) -> ExactWorkload:
    """The workload before the data is split: assumes equally many examples per client.

    ``num_examples`` is the total over all clients; it is known for built-in data sets.
    """
    settings = config.training
    if num_examples is None and config.data.name in CATALOG:
        num_examples = CATALOG[config.data.name].num_train
    if settings.local_steps is not None and settings.batch_size != "full":
        return ExactWorkload(layers, settings.local_steps, settings.batch_size)
    if num_examples is None:
        raise ConfigError(
            f"the work of a round depends on the unknown size of {config.data.name!r}. "
            "Set training.local_steps and training.batch_size.",
            key="training",
        )
    each = -(-num_examples // config.clients.num_clients)  # the most of an even split
    batch = each if settings.batch_size == "full" else min(settings.batch_size, each)
    if settings.local_steps is not None:
        return ExactWorkload(layers, settings.local_steps, batch)
    epochs = settings.local_epochs or 1
    return ExactWorkload(layers, epochs * -(-each // batch), batch, epochs * each)
