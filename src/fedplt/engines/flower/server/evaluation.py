"""Evaluation in the server's own process, in the same chunks as everywhere; and of the nodes."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from fedplt.client import (
    Evaluation,
    Metric,
    combine,
    combine_statistics,
    evaluate_chunk,
    gather_statistics,
    num_chunks,
    statistics_chunks,
)
from fedplt.engines.flower.messages import EvaluateAnswer
from fedplt.errors import UpdateError
from fedplt.federation import Job
from fedplt.kernels import bind_state, buffer_positions
from fedplt.models import copy_model
from fedplt.server import validate_evaluation


class ServerModel:
    """A copy of the model that the server evaluates states with."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.model = copy_model(job.model)
        self.state = bind_state(self.model, job.layers)

    def evaluate(self, part: str, state: Tensor) -> Evaluation:
        job = self.job
        samples = job.test if part == "test" else job.validation
        assert samples is not None
        self.state.copy_(state)
        chunks = (
            evaluate_chunk(self.model, samples, chunk, job.training.loss, job.metric)
            for chunk in range(num_chunks(samples))
        )
        return combine(chunks, job.metric)

    def statistics(self, state: Tensor) -> Tensor:
        """Running statistics over the training data, chunk by chunk."""
        samples, where = self.job.samples, buffer_positions(self.job.layers)
        gathered = []
        for chunk in range(statistics_chunks(samples)):
            self.state.copy_(state)
            number = gather_statistics(self.model, samples, chunk)
            gathered.append((number, self.state[where].double()))
        return combine_statistics(gathered)


def evaluation_of(told: EvaluateAnswer, metric: Metric) -> Evaluation:
    """What a node's answer says; :class:`UpdateError` if its sums cannot be those of the metric."""
    counts, scores, sums = told.label_counts, told.label_scores, np.asarray(told.sums)
    if not math.isfinite(told.loss):
        raise UpdateError(f"its loss is {told.loss}.")
    with np.errstate(all="ignore"):
        score = metric.score(sums, told.count)
    found = Evaluation(
        told.loss,
        score,
        None if counts is None else np.asarray(counts, dtype=np.int64),
        None if scores is None else np.asarray(scores, dtype=np.float64),
        count=told.count,
        sums=sums,
    )
    validate_evaluation(found, metric)
    return found
