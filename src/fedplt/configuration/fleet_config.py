"""Settings of a fleet: ``[fleet]`` in a run, ``[work]`` in a device file.

``[target]`` in a device file is :class:`fedplt.fleet.FleetTarget`; ``[fleet]`` has its keys, too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from fedplt.fleet import DeviceProfile, FleetTarget
from fedplt.schema import Section

ON_NODES = "nodes"
"""Stands for data or devices that only the nodes of a deployment know."""


class AnnouncedDevice(Section):
    """The device that a client's node reports."""

    flops_per_second: float
    down_bits_per_second: float
    up_bits_per_second: float
    latency_seconds: float = 0.0
    memory_bytes: float | None = None

    @classmethod
    def of(cls, profile: DeviceProfile) -> AnnouncedDevice:
        return cls(**{key: getattr(profile, key) for key in cls.model_fields})

    def profile(self, client: int) -> DeviceProfile:
        """Raises FleetError for values that no device has."""
        return DeviceProfile(f"client {client}", **self.model_dump())


class FleetConfig(FleetTarget):
    """Device profiles of a run's clients (``docs/fleet.md``)."""

    devices: str
    """A .toml or .csv file of devices; their counts add up to the clients. ``nodes``: in a
    deployment every node reports its device."""
    replan: Literal["never", "on-change"] = "never"
    """``nodes``: plan once, or replan between rounds when nodes have joined or left."""
    announced: list[AnnouncedDevice] | None = None
    """``nodes``, planned once: the clients' devices. Default: what the nodes report when they
    first join."""
    ratios: Literal["planned", "groups"] = "planned"
    """Plan ratios from the devices, or keep those of ``clients.groups`` (one device per group)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a client is away in a round."""
    availability: str | None = None
    """A .csv file: the probability that each device is available, one row per round."""
    late_after_seconds: PositiveFloat | None = None
    """Clients predicted to take longer are late: they are left out of the round."""

    def refuse_conflicts(self) -> None:
        super().refuse_conflicts()
        if self.ratios == "groups":
            keys = FleetTarget.model_fields
            self.refuse_unused(keys, "ratios = 'groups'", "or set ratios = 'planned'")
        if self.devices != ON_NODES:
            because = f"devices = {self.devices!r}"
            self.refuse_unused(["replan", "announced"], because, "or set devices = 'nodes'")
            return
        # Real nodes come late and drop out by themselves.
        unused = ["ratios", "dropout", "availability", "late_after_seconds"]
        self.refuse_unused(unused, "devices = 'nodes'", "or name a file of devices")
        if self.replan == "on-change":
            instead = "or set replan = 'never'"
            self.refuse_unused(["announced"], "replan = 'on-change'", instead)


class WorkConfig(Section):
    """A client's local training in a round, to plan a fleet without a run."""

    cost: Literal["exact", "paper"] = "exact"
    """How FLOPs are counted: exactly from a model, or by the paper's formula."""
    model: Annotated[str, Field(examples=["fcn"])] = "fcn"
    options: Annotated[dict[str, Any], Field(examples=[{"num_inputs": 3072}])] = {}
    shape: Annotated[list[PositiveInt], Field(examples=[[3, 32, 32]])] = []
    """Shape of one example; built-in models know theirs."""
    num_parameters: PositiveInt | None = None
    """For the paper's formula, instead of a model: its size."""
    bytes_per_parameter: PositiveFloat = 4.0
    """Also for the paper's formula."""
    local_steps: PositiveInt = 16
    batch_size: PositiveInt = 64

    def refuse_conflicts(self) -> None:
        if self.cost == "exact":
            instead = "or set cost = 'paper' for the paper's formula"
            because = "cost = 'exact' counts FLOPs from the model and"
            self.refuse_unused(["num_parameters", "bytes_per_parameter"], because, instead)
        if self.num_parameters is not None:
            unused = ["model", "options", "shape"]
            self.refuse_unused(unused, "a number of parameters", "or leave num_parameters out")
