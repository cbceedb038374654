"""What people write by hand in PyTorch.

loop       one process, two threads, tensors sliced in memory
processes  two forked processes with one thread each, fused SGD, weights in shared memory
mask       the loop, with gradients multiplied by 0/1 masks (29 % trained)
modules    the loop, with layers cut into small Linears of which most are frozen (29 % trained)
"""

from __future__ import annotations

import argparse
import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.contestants import serve
from benchmarks.jobs import BATCH_SIZE, HIDDEN, LEARNING_RATE, NUM_CLIENTS, Arrays, read

SEGMENTS = (13, 13, 13, 1)
RATIO = 0.29


class Segmented(nn.Module):
    """A Linear cut into several small ones."""

    def __init__(self, inputs: int, outputs: int, segments: int) -> None:
        super().__init__()
        widths = [len(part) for part in np.array_split(np.arange(outputs), segments)]
        self.parts = nn.ModuleList(nn.Linear(inputs, width) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=1)


def make_model(num_inputs: int, segmented: bool = False) -> nn.Sequential:
    widths = [num_inputs, *HIDDEN, 10]
    modules: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        if index:
            modules.append(nn.ReLU())
        cut = segmented and SEGMENTS[index] > 1
        modules.append(
            Segmented(inputs, outputs, SEGMENTS[index]) if cut else nn.Linear(inputs, outputs)
        )
    return nn.Sequential(*modules)


class Loop:
    """Clients one after another in this process."""

    def __init__(self, data: Arrays, way: str) -> None:
        self.way, self.offsets = way, data.offsets
        self.x, self.y = torch.from_numpy(data.inputs), torch.from_numpy(data.labels)
        self.validation = (
            torch.from_numpy(data.validation_inputs).split(1000),
            torch.from_numpy(data.validation_labels).split(1000),
        )
        self.model = make_model(data.num_inputs, segmented=way == "modules")
        self.random = np.random.default_rng(2)

    def round(self) -> None:
        total = float(self.offsets[-1])
        mean: dict[str, Tensor] = {}
        for client in range(NUM_CLIENTS):
            start, stop = int(self.offsets[client]), int(self.offsets[client + 1])
            weight = (stop - start) / total
            for name, value in self.train(start, stop).items():
                if name in mean:
                    mean[name].add_(value, alpha=weight)
                else:
                    mean[name] = value * weight
        self.model.load_state_dict(mean)
        evaluate(self.model, *self.validation)

    def train(self, start: int, stop: int) -> dict[str, Tensor]:
        model = copy.deepcopy(self.model)
        masks = self.masks(model) if self.way == "mask" else None
        if self.way == "modules":
            self.freeze(model)
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trainable, lr=LEARNING_RATE)
        x, y = self.x[start:stop], self.y[start:stop]
        for indices in torch.randperm(len(x)).split(BATCH_SIZE):
            optimizer.zero_grad()
            F.cross_entropy(model(x[indices]), y[indices]).backward()
            if masks:
                for parameter, mask in zip(model.parameters(), masks, strict=True):
                    parameter.grad.mul_(mask)  # type: ignore[union-attr]
            optimizer.step()
        return model.state_dict()

    def masks(self, model: nn.Module) -> list[Tensor]:
        result = []
        for parameter in model.parameters():
            if len(parameter) > 10:
                rows = torch.zeros(len(parameter))
                rows[: round(RATIO * len(parameter))] = 1
                shape = [len(parameter)] + [1] * (parameter.ndim - 1)
                result.append(rows.view(shape).expand_as(parameter).contiguous())
            else:
                result.append(torch.ones_like(parameter))
        return result

    def freeze(self, model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, Segmented):
                number = max(1, round(RATIO * len(module.parts)))
                chosen = set(self.random.permutation(len(module.parts))[:number].tolist())
                for index, part in enumerate(module.parts):
                    part.requires_grad_(index in chosen)


def evaluate(model: nn.Module, inputs: Any, labels: Any) -> float:
    with torch.no_grad():
        pairs = zip(inputs, labels, strict=True)
        return sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs)


class Processes:
    """Two forked processes, hand-tuned: fused SGD, sums in shared memory, longest client first."""

    def __init__(self, data: Arrays) -> None:
        from torch import multiprocessing

        torch.set_num_threads(1)
        self.loop = Loop(data, "loop")
        self.model = self.loop.model.share_memory()
        self.sums = [
            [torch.zeros_like(p.data).share_memory_() for p in self.model.parameters()]
            for _ in range(2)
        ]
        sizes = np.diff(data.offsets)
        self.clients: list[list[int]] = [[], []]
        load = [0, 0]
        for client in np.argsort(-sizes):
            index = int(np.argmin(load))
            self.clients[index].append(int(client))
            load[index] += -(-int(sizes[client]) // BATCH_SIZE)
        context = multiprocessing.get_context("fork")
        self.requests = [context.SimpleQueue() for _ in range(2)]
        self.answers = context.SimpleQueue()
        for index in range(2):
            context.Process(target=self.work, args=(index,), daemon=True).start()

    def round(self) -> None:
        self.ask("train")
        with torch.no_grad():
            for parameter, one, two in zip(self.model.parameters(), *self.sums, strict=True):
                torch.add(one, two, out=parameter.data)
        self.ask("evaluate")

    def ask(self, what: str) -> None:
        for queue in self.requests:
            queue.put(what)
        for _ in self.requests:
            self.answers.get()

    def work(self, index: int) -> None:
        torch.set_num_threads(1)
        loop, model = self.loop, copy.deepcopy(self.model)
        weights = [p.data for p in model.parameters()]
        shared = [p.data for p in self.model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, fused=True)
        total = float(loop.offsets[-1])
        while True:
            if self.requests[index].get() == "evaluate":
                evaluate(self.model, *(part[index::2] for part in loop.validation))
            else:
                torch._foreach_zero_(self.sums[index])
                for client in self.clients[index]:
                    start, stop = int(loop.offsets[client]), int(loop.offsets[client + 1])
                    torch._foreach_copy_(weights, shared)
                    order = start + torch.randperm(stop - start)
                    x, y = loop.x[order], loop.y[order]
                    for bx, by in zip(x.split(BATCH_SIZE), y.split(BATCH_SIZE), strict=True):
                        optimizer.zero_grad()
                        F.cross_entropy(model(bx), by).backward()
                        optimizer.step()
                    torch._foreach_add_(self.sums[index], weights, alpha=(stop - start) / total)
            self.answers.put(index)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--way", choices=["loop", "processes", "mask", "modules"], default="loop")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    data = read(options.job)
    torch.set_num_threads(options.threads)
    runner: Any = Processes(data) if options.way == "processes" else Loop(data, options.way)
    serve(runner.round)


if __name__ == "__main__":
    main()
