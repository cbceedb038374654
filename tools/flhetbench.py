"""Convert traces in FLHetBench's format into files of devices and their availability.

    python -m tools.flhetbench training_latency.json cached_timers.json --flop 3.2e10

Input, as in github.com/Carkham/FLHetBench (nothing of it is shipped here):

- ``training_latency.json``: a list of ``{"Phone Model": ..., "ResNet Latency": ms, "Vit Latency":
  ms}``, the milliseconds of a training step. The file does not say how many FLOP a step has:
  ``--flop`` does.
- ``cached_timers.json``: ``{id: {"trace_start": s, "trace_end": s, "ready_time": [[s, s], ...]}}``,
  seconds between which a device was ready to train.

Output: ``devices.csv``, one phone a row, and ``availability.csv``, one row per hour: the share of
the hour in which each phone was ready. Phones and traces are paired in the order of the files.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HOUR = 3600
COLUMNS = ("ResNet Latency", "Vit Latency")


def devices(
    records: Iterable[Mapping[str, Any]], column: str, flop: float, number: int
) -> dict[str, float]:
    """FLOP/s of the first phones with a latency, by name; names are made unique."""
    found: dict[str, float] = {}
    for record in records:
        try:
            milliseconds = float(record[column])
        except (KeyError, TypeError, ValueError):
            continue  # this phone was not measured with this model
        if not 0 < milliseconds < math.inf:
            continue
        model = " ".join(str(record.get("Phone Model", "phone")).split())
        names = itertools.chain([model], (f"{model} {i}" for i in itertools.count(2)))
        found[next(name for name in names if name not in found)] = flop / (milliseconds / 1000)
        if len(found) == number:
            break
    return found


def hourly(trace: Mapping[str, Any], hours: int) -> list[float]:
    """The share of each hour from the start of the trace in which the device was ready."""
    start, end = float(trace["trace_start"]), float(trace["trace_end"])
    known = max(1, min(hours, int((end - start) // HOUR)))
    shares = [0.0] * known
    for begins, ends in trace["ready_time"]:
        for hour in range(known):
            low, high = start + hour * HOUR, start + (hour + 1) * HOUR
            shares[hour] += max(0.0, min(ends, high) - max(begins, low)) / HOUR
    return [min(1.0, shares[hour % known]) for hour in range(hours)]


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def convert(arguments: argparse.Namespace) -> str:
    latencies = json.loads(arguments.latency.read_text(encoding="utf-8"))
    timers = json.loads(arguments.timers.read_text(encoding="utf-8"))
    phones = devices(latencies, arguments.column, arguments.flop, arguments.number)
    traces = [trace for trace in timers.values() if trace.get("ready_time")]
    if not phones:
        raise ValueError(f"{arguments.latency}: no record has a {arguments.column!r}.")
    if not traces:
        raise ValueError(f"{arguments.timers}: no trace has a ready_time.")
    rows = [
        (name, f"{speed:.6g}", arguments.mbps_down, arguments.mbps_up)
        for name, speed in phones.items()
    ]
    header = ("name", "flops_per_second", "mbps_down", "mbps_up")
    write(arguments.out / "devices.csv", header, rows)
    columns = [hourly(traces[i % len(traces)], arguments.hours) for i in range(len(phones))]
    by_hour = zip(*columns, strict=True)
    shown = [[hour, *(f"{share:.4g}" for share in row)] for hour, row in enumerate(by_hour)]
    write(arguments.out / "availability.csv", ["hour", *phones], shown)
    return f"{len(phones)} devices, {arguments.hours} hours: {arguments.out}/devices.csv"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("latency", type=Path, help="training_latency.json")
    parser.add_argument("timers", type=Path, help="cached_timers.json")
    parser.add_argument("--flop", type=float, required=True, help="FLOP of a measured step")
    parser.add_argument("--column", choices=COLUMNS, default=COLUMNS[0])
    parser.add_argument("--number", type=int, default=50, help="of devices (default: 50)")
    parser.add_argument("--hours", type=int, default=168, help="of availability (default: a week)")
    parser.add_argument("--mbps-down", type=float, default=20.0)
    parser.add_argument("--mbps-up", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path())
    try:
        print(convert(parser.parse_args()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
