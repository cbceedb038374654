"""The matrix products of a FedAvg round and nothing else, in one or two one-thread processes.

What the hardware allows at these shapes: no Python between them, no data, no optimiser.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestants import serve
from benchmarks.jobs import BATCH_SIZE, HIDDEN, read


def products(num_inputs: int, batch: int, train: bool) -> list[tuple[Any, ...]]:
    """Operands and results of one step (or one evaluation batch)."""
    widths = [num_inputs, *HIDDEN, 10]
    acts = [torch.randn(batch, width) for width in widths]
    grads = [torch.randn(batch, width) for width in widths]
    weights = [torch.randn(b, a) for a, b in pairwise(widths)]
    forward = [
        (acts[i], weight.T, torch.empty(batch, len(weight))) for i, weight in enumerate(weights)
    ]
    if not train:
        return forward
    inputs = [
        (grads[i + 1], weight, torch.empty(batch, weight.shape[1]))
        for i, weight in enumerate(weights)
        if i
    ]
    gradients = [
        (grads[i + 1].T, acts[i], torch.empty_like(weight)) for i, weight in enumerate(weights)
    ]
    return forward + inputs + gradients


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    data = read(options.job)
    torch.set_num_threads(1)
    steps = int(sum(-(-int(n) // BATCH_SIZE) for n in data.offsets[1:] - data.offsets[:-1]))
    step = products(data.num_inputs, BATCH_SIZE, train=True)
    chunk = products(data.num_inputs, 1000, train=False)
    number = options.processes

    def work() -> None:
        for _ in range(steps // number):
            for a, b, out in step:
                torch.mm(a, b, out=out)
        for _ in range(10 // number):
            for a, b, out in chunk:
                torch.mm(a, b, out=out)

    pipes = [(os.pipe(), os.pipe()) for _ in range(number - 1)]
    for ask, answer in pipes:
        if os.fork() == 0:
            os.close(ask[1])
            while os.read(ask[0], 1):
                work()
                os.write(answer[1], b"x")
            os._exit(0)
        os.close(ask[0])

    def one_round() -> None:
        for ask, _ in pipes:
            os.write(ask[1], b"x")
        work()
        for _, answer in pipes:
            os.read(answer[0], 1)

    serve(one_round)


if __name__ == "__main__":
    main()
