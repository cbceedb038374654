"""Does partial training pay? Local training time, partial over full, against exact FLOPs.

One thread, batch 64, alternatives interleaved. Also shows what leaving out input gradients near
the lowest trained layer saves, and the memory a client needs. ``python -m benchmarks.local``.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from fedplt import cut, make_plan, train_only
from fedplt.models import MODELS, build_model
from fedplt.planning.assignment import Assignment, SliceAssignment
from fedplt.planning.cost import exact_flops
from fedplt.planning.plan import Plan

BATCH = 64
STEPS = 12
PASSES = 15

CASES = [
    ("fcn", {"num_inputs": 3072}, (3072,), [1.0, 0.23, 0.06]),
    ("fcn", {"num_inputs": 784}, (784,), [1.0, 0.29, 0.06]),
    ("resnet8", {}, (3, 32, 32), [1.0, 0.18, 0.06]),
]


def plan_for(name: str, options: dict[str, Any], shape: tuple[int, ...], ratio: float) -> Plan:
    model = build_model(name, options, seed=0)
    layers = cut(model, torch.zeros(2, *shape), groups=MODELS[name].groups)
    return make_plan(layers, [ratio] * 3)


def stepper(
    name: str, options: dict[str, Any], shape: tuple[int, ...], assignment: Assignment
) -> Callable[[], float]:
    """A function that takes ``STEPS`` steps of local training, and tells how many seconds it took.

    One block at a time: an open block watches the operations of the others.
    """
    model = build_model(name, options, seed=0).train()
    inputs = torch.randn(STEPS, BATCH, *shape)
    labels = torch.randint(0, 10, (STEPS, BATCH))

    def steps() -> float:
        with train_only(model, assignment, keep_old=False) as part:
            part.fuse_sgd(1e-3)
            started = time.perf_counter()
            for x, y in zip(inputs, labels, strict=True):
                part.backward(F.cross_entropy(model(x), y))
                part.step()
            return time.perf_counter() - started

    return steps


def race(alternatives: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Minimum seconds of each over interleaved passes."""
    best = dict.fromkeys(alternatives, float("inf"))
    for steps in alternatives.values():
        steps()
    gc.disable()
    for _ in range(PASSES):
        for name, steps in alternatives.items():
            best[name] = min(best[name], steps())
    gc.enable()
    return {name: seconds / STEPS for name, seconds in best.items()}


def memory(name: str, options: dict[str, Any], shape: tuple[int, ...], ratio: float) -> float:
    """Peak MB of a fresh process that trains such a client with momentum and packs its update."""
    if not Path("/proc/self/clear_refs").exists():
        return float("nan")
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_train_once, (name, options, shape, ratio))


def _train_once(name: str, options: dict[str, Any], shape: tuple[int, ...], ratio: float) -> float:
    torch.set_num_threads(1)
    model = build_model(name, options, seed=0).train()
    assignment = plan_for(name, options, shape, ratio).assignment(1)
    before = _start_watching_memory()
    with train_only(model, assignment) as part:
        optimizer = torch.optim.SGD(part.parameters(), lr=1e-3, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.randn(BATCH, *shape)), torch.zeros(BATCH).long())
            loss.backward()
            optimizer.step()
    part.update(BATCH).to_bytes()
    return (_status("VmHWM") - before) / 1000


def _start_watching_memory() -> int:
    """Forget the highest memory so far (Linux); kB in use now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def main() -> None:
    torch.set_num_threads(1)
    out: dict[str, Any] = {"format": 1, "cases": []}
    for name, options, shape, ratios in CASES:
        plans = {ratio: plan_for(name, options, shape, ratio) for ratio in ratios}
        flops = {ratio: exact_flops(plan.assignment(1)) for ratio, plan in plans.items()}
        alternatives = {
            f"{ratio:g}": stepper(name, options, shape, plan.assignment(1))
            for ratio, plan in plans.items()
        }
        for ratio, plan in list(plans.items())[1:]:  # without the shortcut below
            blind = dataclasses.replace(plan.layers, flow=())
            same = SliceAssignment(blind, plan.assignment(1).slices)
            alternatives[f"{ratio:g} all columns"] = stepper(name, options, shape, same)
        seconds = race(alternatives)
        title = f"{name} {'x'.join(map(str, shape))}"
        print(f"\n{title}, one thread\n")
        print(f"{'ratio':>6}{'ms/step':>9}{'time':>8}{'FLOPs':>8}{'off by':>8}"
              f"{'all columns':>13}{'peak MB':>9}")  # fmt: skip
        for ratio in ratios:
            key = f"{ratio:g}"
            by_time = seconds[key] / seconds["1"]
            by_flops = flops[ratio].total / flops[1.0].total
            blind_time = seconds.get(f"{key} all columns", seconds[key])
            megabytes = memory(name, options, shape, ratio)
            print(f"{ratio:6.2f}{1000 * seconds[key]:9.3f}{by_time:8.3f}{by_flops:8.3f}"
                  f"{by_time / by_flops - 1:+8.1%}{blind_time / seconds[key]:12.3f}x"
                  f"{megabytes:9.1f}", flush=True)  # fmt: skip
            out["cases"].append(
                {
                    "model": title, "ratio": ratio, "seconds_per_step": seconds[key],
                    "time_over_full": by_time, "flops_over_full": by_flops,
                    "flops": vars(flops[ratio]), "seconds_all_columns": blind_time,
                    "peak_megabytes": megabytes,
                }
            )  # fmt: skip
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
