"""What is known about a device: how fast it computes, downloads and uploads."""

from __future__ import annotations

from dataclasses import dataclass

from fedplt.errors import FleetError
from fedplt.fleet.quantities import QUANTITIES, value_problem


@dataclass(frozen=True)
class DeviceProfile:
    """A device, or ``count`` devices that are alike.

    Numbers that no device has (an upload of 20 bit/s, a phone with 1e15 FLOP/s) are refused:
    nearly always they are a wrong unit.

    >>> DeviceProfile("phone", 80e9, 120e6, 40e6, latency_seconds=0.2).up_bits_per_second
    40000000.0
    """

    name: str
    flops_per_second: float
    down_bits_per_second: float
    up_bits_per_second: float
    latency_seconds: float = 0.0
    """Fixed time per round: connecting, starting, waking up."""
    memory_bytes: float | None = None
    count: int = 1

    def __post_init__(self) -> None:
        for quantity in QUANTITIES:
            value = getattr(self, quantity.name)
            if value is not None and (problem := value_problem(quantity, value)):
                raise FleetError(f"device {self.name!r}: {quantity.name}: {problem}")
        if self.count < 1:
            raise FleetError(f"device {self.name!r}: count is {self.count}; it is at least 1.")
