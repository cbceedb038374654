"""The matrix products or convolutions of a round and nothing else: what the hardware allows.

They are recorded from one real step of every kind of client (and one batch of the evaluation),
then repeated with the same operands: no data, no loss, no small operations between them. With
``--ratios plain`` they are those of plain torch, which may use another library for them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.contestants import serve
from benchmarks.contestants.ours import make, ratios_of
from benchmarks.jobs import BATCH_SIZE, LEARNING_RATE, RESNET_STEPS, Arrays, read
from benchmarks.recorder import Recorder
from fedplt import train_only
from fedplt.federation.job import Job
from fedplt.fleet import keep_freed_memory

CHUNK = 1000
"""Examples of an evaluation batch."""


def recorded_step(job: Job, client: int | None) -> Recorder:
    """The products of a step of local training; without a client, of plain torch."""
    model = job.model.train()
    inputs, targets = job.samples.batch(torch.arange(BATCH_SIZE))
    recorder = Recorder()
    if client is None:
        with recorder:
            F.cross_entropy(model(inputs), targets).backward()
        return recorder
    with train_only(model, job.plan.assignment(client), keep_old=False) as part:
        part.fuse_sgd(LEARNING_RATE)
        with recorder:
            part.backward(F.cross_entropy(model(inputs), targets))
            part.step()
    return recorder


def recorded_evaluation(job: Job) -> Recorder:
    inputs, _ = job.validation.batch(torch.arange(CHUNK))
    recorder = Recorder()
    with torch.no_grad(), recorder:
        job.model.eval()(inputs)
    return recorder


def first_batches(data: Arrays) -> Arrays:
    """One batch per client and one for the evaluation: all that is recorded."""
    number = (len(data.offsets) - 1) * BATCH_SIZE
    return Arrays(
        data.inputs[:number].copy(),
        data.labels[:number],
        data.validation_inputs[:CHUNK].copy(),
        data.validation_labels[:CHUNK],
        np.arange(len(data.offsets)) * BATCH_SIZE,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--ratios", default="1.0", help="as of ours, or: plain")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--model", choices=["fcn", "resnet8"], default="fcn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    data, number = read(options.job), options.processes
    is_plain = options.ratios == "plain"
    sizes = (data.offsets[1:] - data.offsets[:-1]).tolist()
    num_chunks = len(data.validation_labels) // CHUNK
    data = first_batches(data)
    job = make(data, options.model, "1.0" if is_plain else options.ratios, workers=1)
    ratios = ratios_of(options.ratios, len(sizes)) if not is_plain else [1.0] * len(sizes)
    rounds: list[tuple[Recorder, int]] = []
    for ratio in sorted(set(ratios)):
        clients = [client for client, own in enumerate(ratios) if own == ratio]
        steps = sum(-(-sizes[client] // BATCH_SIZE) for client in clients)
        if options.model == "resnet8":
            steps = len(clients) * RESNET_STEPS
        rounds.append((recorded_step(job, None if is_plain else clients[0]), steps))
    rounds.append((recorded_evaluation(job), num_chunks))

    def work() -> None:
        with torch.no_grad():
            for recorder, times in rounds:
                for _ in range(times // number):
                    recorder.repeat()

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
