"""Flower's client: a separate module, so that Ray's actors load the data once."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.contestants.plain import make_model
from benchmarks.jobs import BATCH_SIZE, LEARNING_RATE, Arrays, read

app = ClientApp()


@functools.cache
def data() -> Arrays:
    return read(Path(os.environ["FEDPLT_BENCH_JOB"]))


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Any) -> Message:
    torch.set_num_threads(1)
    job, client = data(), int(context.node_config["partition-id"])
    start, stop = int(job.offsets[client]), int(job.offsets[client + 1])
    x, y = torch.from_numpy(job.inputs[start:stop]), torch.from_numpy(job.labels[start:stop])
    model = make_model(job.num_inputs)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for indices in torch.randperm(len(x)).split(BATCH_SIZE):
        optimizer.zero_grad()
        F.cross_entropy(model(x[indices]), y[indices]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
