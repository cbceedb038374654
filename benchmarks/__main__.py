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

RATIOS = {
    "fcn-784": ("0.29", "0.06", "1.0,0.29,0.06"),
    "fcn-3072": ("0.23", "0.06", "1.0,0.23,0.06"),
    "resnet8": ("0.18", "0.06", "1.0,0.18,0.06"),
}
"""By job: of all clients alike, twice, and of the fleet."""
PRODUCTS_OF = "products of "
"""Contestants that run the products of another one alone are named after it."""


def own_contestants(job: str, quick: bool) -> list[Contestant]:
    """fedplt, and the matrix products or convolutions of the same rounds."""
    model = ["--model", "resnet8" if job == "resnet8" else "fcn"]
    middle, low, fleet = RATIOS[job]
    found = []
    for name, ratios in (("FedAvg", "1.0"), (f"at {middle}", middle), (f"at {low}", low),
                         ("fleet", fleet)):  # fmt: skip
        options = [*model, "--ratios", ratios]
        found.append(Contestant(f"fedplt {name}", "ours", job, options))
        if not quick:
            found.append(Contestant(f"{PRODUCTS_OF}fedplt {name}", "kernels", job, options))
    if not quick:
        plain = [*model, "--ratios", "plain"]
        found.append(Contestant(f"{PRODUCTS_OF}plain PyTorch", "kernels", job, plain))
    return found


def contestants(job: str, quick: bool, peers: dict[str, str | None]) -> list[Contestant]:
    """Everybody who does this job."""
    found = own_contestants(job, quick)
    if job == "resnet8":
        last, plain = ["--layout", "channels-last"], "plain_resnet"
        return [
            *found,
            Contestant("plain loop", plain, job),
            Contestant("plain loop, channels last", plain, job, last),
            Contestant("plain, 1 thread", plain, job, [*last, "--threads", "1"]),
        ]
    found.append(Contestant("plain loop", "plain", job, ["--way", "loop"]))
    if quick:
        return found
    found.append(Contestant("plain two processes", "plain", job, ["--way", "processes"]))
    if job == "fcn-784":
        found += [
            Contestant("plain masks at 0.29", "plain", job, ["--way", "mask"]),
            Contestant("plain modules at 0.29", "plain", job, ["--way", "modules"]),
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
    parser.add_argument("--jobs", nargs="+", choices=list(RATIOS))
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    for peer in ("flower", "pfl", "fedjax"):
        parser.add_argument(f"--{peer}", help="Python of an environment that has it")
    options = parser.parse_args()
    peers = {name: getattr(options, name) for name in ("flower", "pfl", "fedjax")}
    passes = options.passes or (3 if options.quick else 7)
    chosen = ["fcn-784"] if options.quick else list(RATIOS)
    results: dict[str, dict[str, list[float]]] = {}
    peaks: dict[str, dict[str, list[int]]] = {}
    with tempfile.TemporaryDirectory(prefix="fedplt-bench-") as folder:
        jobs.write(Path(folder))
        for job in options.jobs or chosen:
            print(f"\n{job}\n")
            racing = contestants(job, options.quick, peers)
            race(racing, Path(folder), passes)
            results[job] = {c.name: c.seconds for c in racing}
            peaks[job] = {c.name: c.peaks for c in racing if c.peaks}
            show(job, racing)
    if options.out:
        machine = {"processor": processor(), "torch": torch.__version__}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        found = {"format": 1, "machine": machine, "seconds": results, "peak_megabytes": peaks}
        options.out.write_text(json.dumps(found, indent=2) + "\n")
        print(f"written to {options.out}")


def processor() -> str:
    """Its name, and the vector instructions that torch uses on it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    return f"{name or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def show(job: str, racing: list[Contestant]) -> None:
    """Seconds per round (minimum) and how many times faster fedplt's own rounds are."""
    own = [c for c in racing if c.module == "ours" and "1 worker" not in c.name]
    print(f"\n{'':32}{'s/round':>9}" + "".join(f"{'vs ' + c.name:>22}" for c in own))
    for contestant in sorted(racing, key=lambda c: c.best):
        ratios = "".join(f"{contestant.best / c.best:>21.2f}x" for c in own)
        print(f"{contestant.name:32}{contestant.best:9.3f}{ratios}")
    best = {contestant.name: contestant.best for contestant in racing}
    print()
    for contestant in racing:
        if contestant.peaks:
            parent, *workers = contestant.peaks
            each = ", ".join(map(str, workers))
            print(f"{contestant.name}: peak MB of the parent {parent}, of the workers {each}")
    for name, seconds in best.items():
        if PRODUCTS_OF + name in best:
            print(f"{name}: {best[PRODUCTS_OF + name] / seconds:.0%} of the rate of its products")


if __name__ == "__main__":
    main()
