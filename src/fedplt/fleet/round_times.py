"""How long a client's round takes on its device: latency, download, computation, upload."""

from __future__ import annotations

from dataclasses import dataclass

from fedplt.fleet.devices import DeviceProfile
from fedplt.fleet.workload import Work

TOLERANCE = 1e-9
"""Relative tolerance: times are sums of rounded numbers, and may equal the limit exactly."""


@dataclass(frozen=True)
class RoundTime:
    """Seconds of a client's round, part by part."""

    latency: float
    download: float
    forward: float
    backward: float
    upload: float

    @property
    def total(self) -> float:
        return self.latency + self.download + self.forward + self.backward + self.upload


def round_time(device: DeviceProfile, work: Work) -> RoundTime:
    """How long this work takes this device.

    >>> tv = DeviceProfile("tv", 30e9, 200e6, 50e6, latency_seconds=0.2)
    >>> round(round_time(tv, Work(1.5e9, 3e9, 20e6, 20e6)).total, 2)
    4.35
    """
    return RoundTime(
        device.latency_seconds,
        8 * work.bytes_down / device.down_bits_per_second,
        work.forward_flops / device.flops_per_second,
        work.backward_flops / device.flops_per_second,
        8 * work.bytes_up / device.up_bits_per_second,
    )


def in_time(seconds: float, limit: float) -> bool:
    """Whether a round is not late, up to rounding errors.

    >>> in_time(1.5 + 1e-12, 1.5), in_time(1.5014, 1.5)
    (True, False)
    """
    return seconds <= limit * (1 + TOLERANCE)
