"""The converter of traces, on made-up data in FLHetBench's format."""

from __future__ import annotations

import json
import sys

import pytest
from tools import flhetbench

from fedplt.configuration import read_availability, read_fleet

LATENCY = [
    {"Phone Model": "A 1", "ResNet Latency": 500.0, "Vit Latency": 2000.0},
    {"Phone Model": "A 1", "ResNet Latency": "1000"},
    {"Phone Model": "broken", "ResNet Latency": None},
    {"Phone Model": "B,2", "ResNet Latency": 250},
]
TIMERS = {
    "x": {"isSuccess": True, "trace_start": 100, "trace_end": 100 + 2 * 3600,
          "ready_time": [[100, 1900], [3700, 7300]]},
    "never": {"trace_start": 0, "trace_end": 9999, "ready_time": []},
    "y": {"trace_start": 0.0, "trace_end": 3600.0, "ready_time": [[0.0, 900.0]]},
}  # fmt: skip


def run(monkeypatch, tmp_path, *options, latency=LATENCY):
    (tmp_path / "latency.json").write_text(json.dumps(latency))
    (tmp_path / "timers.json").write_text(json.dumps(TIMERS))
    files = [str(tmp_path / "latency.json"), str(tmp_path / "timers.json")]
    monkeypatch.setattr(sys, "argv", ["flhetbench", *files, "--out", str(tmp_path), *options])
    return flhetbench.main()


def test_traces_become_devices_and_availability(monkeypatch, tmp_path):
    assert run(monkeypatch, tmp_path, "--flop", "1e9", "--hours", "3") == 0
    devices = read_fleet(tmp_path / "devices.csv").devices
    speeds = {device.name: device.flops_per_second for device in devices}
    assert speeds == {"A 1": 2e9, "A 1 2": 1e9, "B,2": 4e9}  # 1e9 FLOP in 0.5, 1 and 0.25 s
    chances = read_availability(tmp_path / "availability.csv", list(speeds))
    # Half of the first hour, all of the second, then from the start again; a quarter of each hour.
    assert chances == ((0.5, 0.25, 0.5), (1.0, 0.25, 1.0), (0.5, 0.25, 0.5))


@pytest.mark.parametrize("latency", [[], {"no": "list"}, [{"Phone Model": "A"}]])
def test_other_files_are_refused_in_words(latency, monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, tmp_path, "--flop", "1e9", latency=latency) == 2
    assert capsys.readouterr().err.startswith("error: ")
