"""Why a device misses a round time: what takes the time, at any ratio."""

from __future__ import annotations

from collections.abc import Sequence

from fedplt.fleet.devices import DeviceProfile
from fedplt.fleet.round_times import in_time, round_time
from fedplt.fleet.workload import Work
from fedplt.text import bytes_text, seconds_text


def late_reason(
    device: DeviceProfile, works: Sequence[Work], seconds: float, smallest: str, helps: str = ""
) -> str:
    """Why even the least work is too much; ``helps`` names what would make it fit.

    What no setting changes comes first: memory, then latency and download, then the forward pass.
    """
    needed = max(work.memory_bytes for work in works)
    if device.memory_bytes is not None and needed > device.memory_bytes:
        need, have = bytes_text(needed), bytes_text(device.memory_bytes)
        return f"needs {need} at {smallest}, has {have}; no deadline changes that"
    time = max((round_time(device, work) for work in works), key=lambda each: each.total)
    limit, advice = f"the target is {seconds_text(seconds)} s", f" ({helps})" if helps else ""
    before = time.latency + time.download
    if not in_time(before, seconds):
        parts = {"latency": time.latency, "download": time.download}
        alone = [name for name, part in parts.items() if not in_time(part, seconds)]
        what = f"{alone[0]} alone takes" if alone else "latency and download take"
        shown = seconds_text(parts[alone[0]] if alone else before)
        return f"its {what} {shown} s at any ratio; {limit}"
    if not in_time(before + time.forward, seconds):
        return (
            f"its forward pass takes {seconds_text(time.forward)} s at any ratio, after "
            f"{seconds_text(before)} s of latency and download; {limit}{advice}"
        )
    return f"takes {seconds_text(time.total)} s at {smallest}, {limit}{advice}"
