"""Round times by device: latency, download, forward, backward, upload and idle seconds."""

from __future__ import annotations

from typing import Any

from fedplt.fleet import in_time
from fedplt.report.page.chart import Chart, axis, evenly, hover, label
from fedplt.report.page.read_runs import ShownRun

MAX_DEVICES = 20
PARTS = ("latency", "download", "forward", "backward", "upload", "idle")


def device_chart(run: ShownRun) -> Chart | None:
    """Stacked bars, two for each device; None if the run has no devices."""
    devices = sorted(run.devices, key=lambda device: -device.full.total)
    if not devices:
        return None
    rounds = {
        "full": max(device.full.total for device in devices),
        "planned": max(device.planned.total for device in devices),
    }
    shown = [devices[i] for i in evenly(len(devices), MAX_DEVICES)]
    bars = [(device, kind) for device in shown for kind in ("full", "planned")]
    names = [label(d.name) for d, _ in bars]
    kinds = ["whole model" if kind == "full" else f"planned ({d.ratio:.1%})" for d, kind in bars]
    traces: list[dict[str, Any]] = []
    for part in PARTS:
        times = [(getattr(device, kind), rounds[kind]) for device, kind in bars]
        seconds = [end - t.total if part == "idle" else getattr(t, part) for t, end in times]
        if max(seconds) > 0:
            traces.append(
                {
                    "type": "bar", "orientation": "h", "name": part, "x": seconds,
                    "y": [names, kinds], "meta": {"color": "muted"} if part == "idle" else {},
                    "hovertemplate": hover("%{y}<br>%{fullData.name}: %{x:.3~g} s"),
                }
            )  # fmt: skip
    layout = {
        "barmode": "stack",
        "xaxis": axis("seconds of a round"),
        "yaxis": {"autorange": "reversed"},
    }
    saved = 1 - rounds["planned"] / rounds["full"] if rounds["full"] else 0.0
    note = (
        f"A round takes {rounds['planned']:.3g} s as planned and {rounds['full']:.3g} s if every "
        f"device trains the whole model ({saved:.1%} less)."
    )
    deadline = run.config.fleet.deadline_seconds if run.config and run.config.fleet else None
    late = [d for d in devices if deadline and not in_time(d.planned.total, deadline)]
    if late:
        note += (
            f" {sum(len(d.clients) for d in late)} clients miss the deadline of {deadline:g} s: "
            f"{', '.join(label(d.name) for d in late[:5])}{', ...' * (len(late) > 5)}."
        )
    if len(shown) < len(devices):
        note += f" {len(shown)} of {len(devices)} devices are shown, slowest first."
    height = 120 + 44 * len(shown)
    return Chart("devices", "Time by device", note, traces, layout, note, height)
