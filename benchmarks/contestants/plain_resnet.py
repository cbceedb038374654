"""ResNet-8 in a plain PyTorch loop: 16 steps of batch 64 per client."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.contestants import serve
from benchmarks.contestants.plain import evaluate
from benchmarks.jobs import BATCH_SIZE, LEARNING_RATE, RESNET_STEPS, read
from fedplt.models import ResNet8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layout", choices=["channels-last", "usual"], default="usual")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    last = options.layout == "channels-last"
    layout = torch.channels_last if last else torch.contiguous_format
    data = read(options.job)

    def images(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).view(-1, 3, 32, 32).contiguous(memory_format=layout)

    x, y = images(data.inputs), torch.from_numpy(data.labels)
    model = ResNet8().to(memory_format=layout)  # type: ignore[call-overload]
    validation = images(data.validation_inputs).split(1000)
    labels = torch.from_numpy(data.validation_labels).split(1000)

    def train(start: int, stop: int) -> dict[str, torch.Tensor]:
        local = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(local.parameters(), lr=LEARNING_RATE)
        for _ in range(RESNET_STEPS):
            chosen = start + torch.randperm(stop - start)[:BATCH_SIZE]
            optimizer.zero_grad()
            F.cross_entropy(local(x[chosen]), y[chosen]).backward()
            optimizer.step()
        return local.state_dict()

    def one_round() -> None:
        total = float(data.offsets[-1])
        mean: dict[str, torch.Tensor] = {}
        for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
            for name, value in train(int(start), int(stop)).items():
                part = value * (float(stop - start) / total)
                mean[name] = mean[name] + part if name in mean else part
        model.load_state_dict(mean)
        evaluate(model.eval(), validation, labels)

    serve(one_round)


if __name__ == "__main__":
    main()
