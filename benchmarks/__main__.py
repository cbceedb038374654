"""``python -m benchmarks [--quick] [--flower PYTHON] [--pfl PYTHON] [--fedjax PYTHON]``."""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path

import torch

from benchmarks import jobs
from benchmarks.runner import Contestant, race

FLEETS = {"fcn-784": "1.0,0.29,0.06", "fcn-3072": "1.0,0.23,0.06"}


def resnet_contestants() -> list[Contestant]:
    ours, plain = ["--model", "resnet8"], "plain_resnet"
    last = ["--layout", "channels-last"]
    return [
        Contestant("fedplt FedAvg", "ours", "resnet8", ours),
        Contestant("fedplt at 0.18", "ours", "resnet8", [*ours, "--ratios", "0.18"]),
        Contestant("plain loop", plain, "resnet8"),
        Contestant("plain loop, channels last", plain, "resnet8", last),
        Contestant("plain, 1 thread", plain, "resnet8", [*last, "--threads", "1"]),
    ]


def contestants(job: str, quick: bool, peers: dict[str, str | None]) -> list[Contestant]:
    """Everybody who does this job."""
    if job == "resnet8":
        return resnet_contestants()
    ratio = FLEETS[job].split(",")[1]
    found = [
        Contestant("fedplt FedAvg", "ours", job),
        Contestant(f"fedplt at {ratio}", "ours", job, ["--ratios", ratio]),
        Contestant("fedplt fleet", "ours", job, ["--ratios", FLEETS[job]]),
        Contestant("plain loop", "plain", job, ["--way", "loop"]),
    ]
    if quick:
        return found
    found += [
        Contestant("plain two processes", "plain", job, ["--way", "processes"]),
        Contestant("matrix products, 2 processes", "kernels", job, ["--processes", "2"]),
    ]
    if job == "fcn-784":
        found += [
            Contestant("plain masks at 0.29", "plain", job, ["--way", "mask"]),
            Contestant("plain modules at 0.29", "plain", job, ["--way", "modules"]),
            Contestant("matrix products, 1 process", "kernels", job, ["--processes", "1"]),
            Contestant("fedplt FedAvg, 1 worker", "ours", job, ["--workers", "1"]),
        ]
        for name, python in peers.items():
            if python:
                found.append(Contestant(name, name, job, python=python))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="plain loop only, under a minute")
    parser.add_argument("--passes", type=int)
    parser.add_argument("--jobs", nargs="+", choices=[*FLEETS, "resnet8"])
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    for peer in ("flower", "pfl", "fedjax"):
        parser.add_argument(f"--{peer}", help="Python of an environment that has it")
    options = parser.parse_args()
    peers = {name: getattr(options, name) for name in ("flower", "pfl", "fedjax")}
    passes = options.passes or (3 if options.quick else 7)
    chosen = ["fcn-784"] if options.quick else [*FLEETS, "resnet8"]
    results: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="fedplt-bench-") as folder:
        jobs.write(Path(folder))
        for job in options.jobs or chosen:
            print(f"\n{job}\n")
            racing = contestants(job, options.quick, peers)
            race(racing, Path(folder), passes)
            results[job] = {c.name: c.seconds for c in racing}
            show(job, racing)
    if options.out:
        machine = {
            "processor": platform.processor() or platform.machine(),
            "torch": torch.__version__,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": 1, "machine": machine, "seconds": results}, indent=2)
        options.out.write_text(text + "\n")
        print(f"written to {options.out}")


def show(job: str, racing: list[Contestant]) -> None:
    """Seconds per round (minimum) and how many times faster fedplt's own rounds are."""
    own = [c for c in racing if c.module == "ours" and "1 worker" not in c.name]
    print(f"\n{'':32}{'s/round':>9}" + "".join(f"{'vs ' + c.name:>22}" for c in own))
    for contestant in sorted(racing, key=lambda c: c.best):
        ratios = "".join(f"{contestant.best / c.best:>21.2f}x" for c in own)
        print(f"{contestant.name:32}{contestant.best:9.3f}{ratios}")


if __name__ == "__main__":
    main()
