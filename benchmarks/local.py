"""Does partial training pay? Local training time, partial over full, against exact FLOPs.

One thread, batch 64 (MiniLM: 8), alternatives interleaved, time on the processor: other processes
disturb it little. Also shows how much of a step its matrix products and convolutions take
("products"), what leaving out input gradients near the lowest trained layer saves ("all columns"),
and the memory a client needs. ``python -m benchmarks.local``.
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
from torch import Tensor, nn

from benchmarks.recorder import Recorder
from fedplt import cut, make_plan, train_only
from fedplt.client import LocalTraining, TrainingConfig, classification_loss
from fedplt.client.local_training import train_client
from fedplt.data.samples import TensorSamples
from fedplt.fleet import keep_freed_memory
from fedplt.models import MODELS, build_model
from fedplt.planning.assignment import Assignment, SliceAssignment
from fedplt.planning.flops import exact_flops
from fedplt.planning.plan import Plan

BATCH = 64
MINILM, MINILM_BATCH = "benchmarks.local:MiniLM", 8
"""As in its example."""
STEPS = 4
PASSES = 25

CASES = [
    ("fcn", {"num_inputs": 3072}, (3072,), [1.0, 0.23, 0.06]),
    ("fcn", {"num_inputs": 784}, (784,), [1.0, 0.29, 0.06]),
    ("resnet8", {}, (3, 32, 32), [1.0, 0.18, 0.06]),
    ("vit", {}, (3, 32, 32), [1.0, 0.25, 0.06]),
    ("text", {}, (64,), [1.0, 0.25, 0.06]),
    ("benchmarks.local:Recurrent", {}, (32, 64), [1.0, 0.25, 0.06]),
    (MINILM, {}, (32,), [1.0, 0.3, 0.05]),
]


class Recurrent(nn.Module):
    """An LSTM, and a classifier of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


class MiniLM(nn.Module):
    """The transformer of ``examples/fine_tune``; its time does not depend on the values it holds.

    Every client trains the output layer in full, as there.
    """

    def __init__(self) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        config = BertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(384, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.bert(x, torch.ones_like(x)).last_hidden_state.mean(1))
        return logits


def batch_of(name: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Random inputs and targets; images are channels last, as in a run."""
    if name == "text":
        return torch.randint(0, 128, (BATCH, *shape)), torch.randint(0, 128, (BATCH, *shape))
    if name == MINILM:
        number = MINILM_BATCH
        return torch.randint(0, 30_000, (number, *shape)), torch.randint(0, 5, (number,))
    inputs = torch.randn(BATCH, *shape)
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return inputs, torch.randint(0, 10, (BATCH,))


def plan_for(name: str, options: dict[str, Any], shape: tuple[int, ...], ratio: float) -> Plan:
    model = build_model(name, options, seed=0)
    groups = MODELS[name].groups if name in MODELS else {}
    always = ["head"] if name == MINILM else []
    layers = cut(model, batch_of(name, shape)[0][:2], groups=groups, always=always)
    return make_plan(layers, [ratio] * 3)


def stepper(
    name: str, options: dict[str, Any], shape: tuple[int, ...], assignment: Assignment
) -> tuple[Callable[[], float], Callable[[], float]]:
    """Functions that take ``STEPS`` steps, or do the products of one as often; both give seconds.

    One block at a time: an open block watches the operations of the others.
    """
    model = build_model(name, options, seed=0).train()
    inputs, targets = zip(*(batch_of(name, shape) for _ in range(STEPS + 1)), strict=True)
    samples = TensorSamples(torch.cat(inputs), torch.cat(targets)).with_channels_last()
    settings = LocalTraining(TrainingConfig(batch_size=len(inputs[0])))
    recorder = Recorder()

    def steps() -> float:
        begun: list[float] = []
        train_client(
            model, assignment, samples, range(len(samples)), settings, learning_rate=1e-3,
            seed=1, round=0, client=0, on_step=lambda: begun.append(time.process_time()),
        )  # fmt: skip
        return begun[-1] - begun[0]

    def products() -> float:
        started = time.process_time()
        with torch.no_grad():
            for _ in range(STEPS):
                recorder.repeat()
        return time.process_time() - started

    steps()  # the second pass is recorded: the first one chooses what later ones leave out
    with train_only(model, assignment, keep_old=False) as part:
        part.fuse_sgd(1e-3)
        for _ in range(2):
            recorder.calls.clear()
            with recorder:
                part.backward(classification_loss(model(inputs[0]), targets[0]))
            part.step()
    return steps, products


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
            inputs, targets = batch_of(name, shape)
            F.cross_entropy(model(inputs), targets).backward()
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
    keep_freed_memory()
    out: dict[str, Any] = {"format": 1, "cases": []}
    for name, options, shape, ratios in CASES:
        plans = {ratio: plan_for(name, options, shape, ratio) for ratio in ratios}
        flops = {ratio: exact_flops(plan.assignment(1)) for ratio, plan in plans.items()}
        alternatives: dict[str, Callable[[], float]] = {}
        for ratio, plan in plans.items():
            steps, products = stepper(name, options, shape, plan.assignment(1))
            alternatives |= {f"{ratio:g}": steps, f"{ratio:g} products": products}
        for ratio, plan in list(plans.items())[1:]:  # without the shortcut below
            blind = dataclasses.replace(plan.layers, flow=())
            same = SliceAssignment(blind, plan.assignment(1).slices)
            alternatives[f"{ratio:g} all columns"], _ = stepper(name, options, shape, same)
        seconds = race(alternatives)
        title = f"{name.split(':')[-1].lower()} {'x'.join(map(str, shape))}"
        print(f"\n{title}, one thread\n")
        print(f"{'ratio':>6}{'ms/step':>9}{'products':>9}{'time':>8}{'FLOPs':>8}{'off by':>8}"
              f"{'all columns':>13}{'peak MB':>9}")  # fmt: skip
        for ratio in ratios:
            key = f"{ratio:g}"
            by_time = seconds[key] / seconds["1"]
            by_flops = flops[ratio].total / flops[1.0].total
            blind_time = seconds.get(f"{key} all columns", seconds[key])
            megabytes = memory(name, options, shape, ratio)
            share = seconds[f"{key} products"] / seconds[key]
            print(f"{ratio:6.2f}{1000 * seconds[key]:9.3f}{share:9.0%}{by_time:8.3f}{by_flops:8.3f}"
                  f"{by_time / by_flops - 1:+8.1%}{blind_time / seconds[key]:12.3f}x"
                  f"{megabytes:9.1f}", flush=True)  # fmt: skip
            out["cases"].append(
                {
                    "model": title, "ratio": ratio, "seconds_per_step": seconds[key],
                    "time_over_full": by_time, "flops_over_full": by_flops,
                    "flops": flops[ratio]._asdict(), "seconds_all_columns": blind_time,
                    "peak_megabytes": megabytes, "products_share": share,
                }
            )  # fmt: skip
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
