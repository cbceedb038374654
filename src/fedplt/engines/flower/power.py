"""Whether this machine is on mains power."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

POWER_SUPPLIES = Path("/sys/class/power_supply")


class Power(NamedTuple):
    """Whether the machine is on mains power, and how that is known."""

    on_mains: bool
    reason: str


def power(supplies: Path = POWER_SUPPLIES) -> Power:
    """What Linux says about the power supply; where it says nothing, mains power is assumed."""
    found = sorted(supplies.iterdir()) if supplies.is_dir() else []
    if not found:
        return Power(True, f"no battery is known ({supplies} is empty): taken as mains power")
    # A mouse or a headset has a battery, too: its scope is "Device".
    ours = [supply for supply in found if _read(supply / "scope") != "Device"]
    plugs = [supply for supply in ours if _read(supply / "type") in ("Mains", "USB")]
    batteries = [supply for supply in ours if _read(supply / "type") in ("Battery", "UPS")]
    if not batteries:
        return Power(True, "there is no battery: mains power")
    online = {_read(plug / "online") for plug in plugs}
    status = {_read(battery / "status") for battery in batteries}
    if "1" in online:
        return Power(True, "the power supply is online: mains power")
    if "Discharging" in status or online == {"0"}:
        return Power(False, "it runs on its battery")
    if status & {"Charging", "Full"}:
        return Power(True, "the battery is charging or full: mains power")
    return Power(True, "the battery does not say whether it is used: taken as mains power")


def on_mains(supplies: Path = POWER_SUPPLIES) -> bool:
    return power(supplies).on_mains


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
