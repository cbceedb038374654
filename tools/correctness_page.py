"""Write docs/correctness.md: what is checked against what, how often, with which difference.

All numbers of the page come from this run. It takes a few minutes: ``make correctness``.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.support import batteries
from tests.support.batteries import Result
from tools.machine import machine

PAGE = Path(__file__).parents[1] / "docs" / "correctness.md"


@dataclass(frozen=True)
class Check:
    """A row of the page, and how to compute it."""

    title: str
    against: str
    about: str
    """What is compared, in a sentence or two."""
    run: Callable[[int], Result]
    number: int
    """Of models, networks or draws."""
    is_training: bool = True


MASK = "full gradients times mask"
CHECKS = (
    Check(
        "Built-in models", MASK,
        "One step of partial training of each built-in model, for clients of four ratios. Every "
        "parameter and buffer is a comparison; untrained ones must keep their bits.",
        batteries.built_in_models, 100,
    ),
    Check(
        "Hand-made models", MASK,
        "The same for small models of kinds that people bring: convolutions of all kinds, tied "
        "weights, attention, recurrent layers, adapters, bare parameters, frozen layers.",
        batteries.hand_made_models, 100,
    ),
    Check(
        "Families of models", MASK,
        "Everything a model may do with a layer beyond calling it (calling itself, functional "
        "calls, hooks, gradients inside the forward pass, checkpoints, autocast, threads, patched "
        "classes, ...), around every kind of layer. Two steps of fused SGD.",
        batteries.families, 10_000,
    ),
    Check(
        "Random networks in random training loops", MASK,
        "Networks composed at random of these families and layers, in loops with a random "
        "optimizer, scheduler, way to clear gradients, accumulation, clipping and loss. Some loops "
        "assign to `.data`, take gradients elsewhere (as SAM does), have hooks on slices, or "
        "change the gradient at the loss in place.",
        batteries.fuzzed_networks, 1_000,
    ),
    Check(
        "Planted mistakes", "the random networks above",
        "Kernels and bookkeeping are made wrong on purpose, one at a time, and random networks "
        "are tried until one of them gives other numbers, or raises. A mistake that none of them "
        "detects counts as wrong.",
        batteries.planted_mistakes, 100, False,
    ),
    Check(
        "Sub-models", "the whole model, zero where nothing is held",
        "One step of the smaller models of HeteroFL, FedRolex and FedDrop: built-in models, then "
        "random convolutional networks.",
        batteries.sub_models, 150,
    ),
    Check(
        "Aggregation", "the weighted mean, value by value",
        "Rounds with random fleets, updates and numbers of examples. The state of a model is "
        "float32, so this difference is the rounding of float32.",
        batteries.aggregation, 200, False,
    ),
    Check(
        "Balanced allocation", "bisection",
        "The ratio of every layer for random models and ratios.",
        batteries.allocations, 2_000, False,
    ),
    Check(
        "Client sampling", "small moves between two clients",
        "Whether any move of upload probability saves variance at the same cost. The difference is "
        "the largest share saved; 0: the probabilities are the optimum.",
        batteries.sampling, 500, False,
    ),
    Check(
        "FLOPs of a step", "torch's own counter",
        "Predicted costs of a client's step against what torch counts while it runs, without the "
        "module hooks of its counter, which switch off the savings in columns.",
        batteries.costs, 100, False,
    ),
)  # fmt: skip
NOT_CHECKED = (
    "**GPUs.** Everything here ran on a CPU.",
    "**Low precision.** Under `torch.autocast`, torch's own operations compute whole gradients; "
    "the runs above have autocast switched on with float64 models, which it does not cast.",
    "**Other versions of torch** than the one named above.",
    "**Delayed effects of state.** Before a run, two clients are trained for one step in both "
    "orders. Numbers and text in attributes of modules, also in lists and dictionaries, are reset "
    "after each client; another state (an object, a variable of a Python module, a cache in a "
    "Dataset) that has no effect in the first steps is not detected.",
    "**Models of other kinds.** Check yours: `fedplt cut my_package:build --check`, or "
    "`fedplt.check(model, example, loss)`. Every run does so before its first round "
    "(`engine.check`).",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, help="at most so many of each (for a try)")
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results, started = [], time.perf_counter()
    for check in CHECKS:
        results.append(check.run(min(check.number, arguments.number or check.number)))
        print(f"{check.title}: {results[-1].comparisons} compared", flush=True)
    arguments.out.write_text(page(results, time.perf_counter() - started), encoding="utf-8")
    wrong = [text for result in results for text in result.wrong]
    print("\n".join(wrong) or f"written to {arguments.out}")
    return 1 if wrong else 0


def page(results: list[Result], seconds: float) -> str:
    lines = ["# Correctness", "", *answer(results), ""]
    lines += [
        f"To repeat the comparison and write this page ({seconds / 60:.0f} minutes):",
        *("", "```sh", "make correctness", "```", ""),
        f"Measured on {machine()}, one thread.",
        "",
    ]
    lines += ["## What is compared with what", "", *table(results), ""]
    for check in CHECKS:
        lines += [f"- **{check.title}.** {check.about}"]
    lines += [
        "",
        '"Full gradients times mask" is the slow reference: the whole model\'s gradients by plain '
        "PyTorch, zero where the client does not train, and an ordinary optimizer. Differences are "
        "relative to the largest change of a parameter, in float64. "
        f"{sum(result.left_out for result in results)} more networks were left out: torch itself "
        "cannot train them (a checkpoint in a gradient of the forward pass), or nothing moves.",
        "",
        "## What is refused",
        "",
        *refusals(results),
        "",
        "## What is not checked here",
        "",
        *(f"- {text}" for text in NOT_CHECKED),
    ]
    return "\n".join(lines) + "\n"


def answer(results: list[Result]) -> list[str]:
    """What a reader wants to know first."""
    training = [r for check, r in zip(CHECKS, results, strict=True) if check.is_training]
    models, wrong = sum(r.models for r in training), sum(len(r.wrong) for r in training)
    refused = sum(r.refused.total() for r in training)
    worst = max(r.worst for r in training)
    verdict = (
        f"{models - refused} of them gave the same numbers, with differences of at most "
        f"{worst:.0e}, which is rounding; {refused} were refused with an error; none was wrong."
    )
    if wrong:
        verdict = f"{wrong} comparisons were WRONG; {refused} models were refused."
    return [
        "Does a client that trains a part of a model compute what ordinary training computes for "
        f"that part? We trained {models} models and random networks in both ways. {verdict}"
    ]


def table(results: list[Result]) -> list[str]:
    lines = [
        "| What | compared with | models | comparisons | refused | not decided | wrong "
        "| largest difference |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for check, result in zip(CHECKS, results, strict=True):
        largest = f"{result.worst:.0e}" if result.worst else "0"
        lines.append(
            f"| {check.title} | {check.against} | {result.models} | {result.comparisons} "
            f"| {result.refused.total()} | {result.not_decided} | {len(result.wrong)} "
            f"| {largest} |"
        )
    return lines


def refusals(results: list[Result]) -> list[str]:
    words = sum((result.refused for result in results), Counter[str]())
    if not words:
        return ["Nothing was."]
    return ["How often, and the error:", ""] + [f"- {n}: {text}" for text, n in words.most_common()]


if __name__ == "__main__":
    sys.exit(main())
