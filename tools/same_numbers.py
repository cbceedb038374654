"""Does the working tree compute the same numbers as a commit, bit by bit?

    python tools/same_numbers.py --base REV [--only NAME ...] [--keep DIR] [--rerun-base]

The small runs of same_numbers.toml are made with the code of both. Every tensor of their final
models and every column of their records (but times) is compared by SHA-256. The hashes of REV are
kept in .same-numbers/, so that the next call runs the new code only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent
RUNS = tomllib.loads((TOOLS / "same_numbers.toml").read_text(encoding="utf-8"))
NOT_NUMBERS = {"seconds", "format", "result.format", "seal", "result.seal"}
"""Columns that differ between any two runs, or between versions of a file."""


class Outcome(NamedTuple):
    """Of a run: hashes by ``tensor NAME`` and ``column NAME``, or why there are none."""

    hashes: dict[str, str]
    seconds: float = 0.0
    error: str = ""


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both, table by table; the second wins."""
    both = {**first, **second}
    for key in first.keys() & second.keys():
        if isinstance(first[key], dict):
            both[key] = merged(first[key], second[key])
    return both


def configuration(name: str) -> dict[str, Any]:
    own, common = RUNS["runs"][name], RUNS["common"]
    model = merged(common, own)["model"]["name"]
    return merged(merged(common, RUNS["models"][model]), own)


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def hashes_of(folder: Path) -> dict[str, str]:
    """Of a finished run: one for every tensor and for every column of the records."""
    content = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    found = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            kind = json.dumps([name, entry["dtype"], entry["shape"]]).encode()
            first, last = (start + offset for offset in entry["data_offsets"])
            found[f"tensor {name}"] = sha256(kind, content[first:last])
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    columns: dict[str, list[Any]] = {}
    for record in [*records, {"result": json.loads((folder / "result.json").read_text())}]:
        for table, value in record.items():
            for key, number in value.items() if isinstance(value, dict) else [("", value)]:
                column = columns.setdefault(f"{table}.{key}".rstrip("."), [])
                column.append([record.get("round"), number])
    for name, values in columns.items():
        if name not in NOT_NUMBERS:
            found[f"column {name}"] = sha256(json.dumps(values).encode())
    return found


def python(tree: Path, folder: Path, *arguments: str) -> str:
    """Run Python with the code of a tree, in a folder; what it printed."""
    env = os.environ | {"PYTHONPATH": f"{tree}/src{os.pathsep}{TOOLS}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"exit code {done.returncode}")[-500:])
    return done.stdout.strip()


def outcome(name: str, tree: Path, folder: Path) -> Outcome:
    """Run one configuration, and resume it where that is asked for."""
    started, config = time.perf_counter(), configuration(name)
    rounds = config.pop("resume_to", None)
    (folder / f"{name}.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    try:
        python(tree, folder, "-m", "fedplt.cli", "run", f"{name}.toml", "--out", name)
        if rounds:
            python(tree, folder, "-m", "fedplt.cli", "resume", name, "--set", f"rounds={rounds}")
        return Outcome(hashes_of(folder / name), time.perf_counter() - started)
    except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Outcome({}, time.perf_counter() - started, str(error))


def outcomes(names: list[str], tree: Path, folder: Path, jobs: int) -> Iterator[Outcome]:
    """Of runs with the code of a tree, in their order."""
    folder.mkdir(parents=True)
    (folder / "devices.csv").write_text(RUNS["devices"].lstrip(), encoding="utf-8")
    (folder / "matplotlib.py").write_text("raise ImportError")  # no report: that takes a second
    used = python(tree, folder, "-c", "import fedplt; print(fedplt.__file__)")
    if not Path(used).is_relative_to(tree):
        raise RuntimeError(f"Python imports {used}, not the code of {tree}")
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda name: outcome(name, tree, folder), names)


def git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else sys.exit(2)  # git has printed why


def machine() -> str:
    """Processor and torch: the last bits may differ between kinds of them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().partition("\n\n")[0].splitlines() if info.exists() else []
    flags = "".join(line for line in lines if line.startswith(("flags", "Features")))
    name = next((line for line in lines if line.startswith("model name")), platform.processor())
    return f"{name} {platform.machine()} {sha256(flags.encode())}, torch {version('torch')}"


def base_outcomes(commit: str, folder: Path, options: argparse.Namespace) -> dict[str, Outcome]:
    """Of a commit: kept ones, where the run and its data are still the same, or new ones."""
    data = RUNS["devices"].encode() + (TOOLS / "same_numbers_data.py").read_bytes()
    keys = {name: sha256(json.dumps(configuration(name)).encode(), data) for name in options.only}
    file = ROOT / ".same-numbers" / f"{commit[:12]}-{sha256(machine().encode())[:8]}.json"
    kept = json.loads(file.read_text())["hashes"] if file.exists() else {}
    found = {name: Outcome(kept[key]) for name, key in keys.items() if key in kept}
    missing, tree = [n for n in keys if options.rerun_base or n not in found], folder / "tree"
    if missing:
        print(f"{len(missing)} runs with the code of {commit[:12]} ...", flush=True)
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            made = outcomes(missing, tree, folder / "base", options.jobs)
            found.update(zip(missing, made, strict=True))
        finally:
            git("worktree", "remove", "--force", str(tree))
        kept |= {keys[name]: found[name].hashes for name in missing if not found[name].error}
        file.parent.mkdir(exist_ok=True)
        content = {"commit": commit, "machine": machine(), "hashes": kept}
        file.write_text(json.dumps(content, indent=1))
    return found


def difference(base: Outcome, new: Outcome) -> str:
    """Describe what differs; empty if all is the same."""
    if base.error or new.error:
        return f"base failed: {base.error}" if base.error else f"new failed: {new.error}"
    names = {name for name, _ in base.hashes.items() ^ new.hashes.items()}
    tensors = {name.split()[1] for name in names if name.startswith("tensor ")}
    columns = {name.split()[1] for name in names if name.startswith("column ")}
    some = [f"{len(tensors)} tensors (such as {min(tensors)})"] if tensors else []
    return ", ".join(some + sorted(columns))


def main() -> int:
    parser = argparse.ArgumentParser(description="Same numbers as a commit, bit by bit?")
    add, names = parser.add_argument, list(RUNS["runs"])
    add("--base", required=True, metavar="REV", help="commit to compare with")
    add("--only", nargs="+", choices=names, default=names, metavar="NAME", help="some runs")
    add("--keep", type=Path, metavar="DIR", help="new folder to leave the runs in")
    add("--rerun-base", action="store_true", help="do not use kept hashes")
    add("--jobs", type=int, default=2, metavar="N", help="runs at a time (default: 2)")
    options = parser.parse_args()
    if options.keep and options.keep.exists():
        parser.error(f"--keep: {options.keep} is there already; name a new folder.")
    started, num_different, commit = time.perf_counter(), 0, git("rev-parse", f"{options.base}^0")
    with tempfile.TemporaryDirectory(prefix="same-numbers-") as scratch:
        folder = Path(options.keep or scratch).resolve()
        base = base_outcomes(commit, folder, options)
        made = outcomes(options.only, ROOT, folder / "new", options.jobs)
        print(f"{'run':<20} {'numbers':<9} seconds")
        for name, new in zip(options.only, made, strict=True):
            what = difference(base[name], new)
            num_different += bool(what)
            word = "DIFFERENT" if what else "same"
            print(f"{name:<20} {word:<9} {new.seconds:7.1f}  {what}", flush=True)
    print(f"{num_different} of {len(options.only)} differ, {time.perf_counter() - started:.0f} s")
    return int(num_different > 0)


if __name__ == "__main__":
    sys.exit(main())
